"""Postgres under Patroni and etcd: nodes on this machine, each with a line to etcd and one for its standbys.

The programs are Debian's packages `patroni`, `etcd-server` and `postgresql`; tests without them are skipped. They run
as an unprivileged user in a folder that is removed afterwards.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.accepting import connection_to
from tests.support.postgres import _as_unprivileged, _binaries, _free_port, children, new_folder
from tests.support.tcp_relay import TcpRelays
from tests.support.waiting import LOOK_AGAIN_S, eventually

START_S = 120.0
TTL_S = 6  # after which a silent primary is replaced; Patroni's own default is 30
_TIMELINE = "SELECT CASE WHEN pg_is_in_recovery() THEN '' ELSE substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END"
_PROGRAMS = {"patroni": "patroni", "patronictl": "patroni", "etcd": "etcd-server"}


class Node:
    """One Postgres with its Patroni."""

    def __init__(self, name: str, folder: Path, lines: TcpRelays, etcd: int) -> None:
        self.name = name
        self.port, self.rest = _free_port(), _free_port()
        self.to_etcd, self.to_standbys = lines.to(etcd), lines.to(self.port)
        self._folder = folder / name
        self._patroni: subprocess.Popen[bytes] | None = None
        self._is_frozen = False

    def prepare(self, settings: dict[str, Any]) -> None:
        """Write the configuration, which is YAML, and so also JSON."""
        self._folder.mkdir()
        shutil.chown(self._folder, self._folder.parent.owner())
        rest = f"127.0.0.1:{self.rest}"
        users = {"superuser": "postgres", "replication": "replicator", "rewind": "rewinder"}
        document = {
            "scope": "popmq",
            "name": self.name,
            "restapi": {"listen": rest, "connect_address": rest},
            "etcd3": {"proxy": f"http://127.0.0.1:{self.to_etcd.port}"},
            "bootstrap": {
                "dcs": {"ttl": TTL_S, "loop_wait": 1, "retry_timeout": 2, **settings},
                "initdb": [{"encoding": "UTF8"}, {"auth": "trust"}, "no-sync", "data-checksums"],
            },
            "postgresql": {
                "listen": f"127.0.0.1:{self.port}",
                "connect_address": f"127.0.0.1:{self.to_standbys.port}",
                "data_dir": str(self._data),
                "bin_dir": str(_binaries()),
                "pgpass": str(self._folder / "pgpass"),
                "authentication": {role: {"username": user, "password": "x"} for role, user in users.items()},
                "pg_hba": ["host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"],
                "parameters": {"unix_socket_directories": str(self._folder)},
                # A node that has more than the new primary goes back, or begins anew.
                "use_pg_rewind": True,
                "remove_data_directory_on_rewind_failure": True,
                "remove_data_directory_on_diverged_timelines": True,
            },
        }
        (self._folder / "patroni.yml").write_text(json.dumps(document))

    @property
    def configuration(self) -> Path:
        return self._folder / "patroni.yml"

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def is_running(self) -> bool:
        """Whether its Patroni runs, or is frozen."""
        return self._patroni is not None

    def start(self) -> None:
        with (self._folder / "log").open("ab") as log:
            self._patroni = subprocess.Popen(
                _as_unprivileged("patroni", str(self.configuration)),
                stdout=log,
                stderr=log,
                cwd=self._folder,
                start_new_session=True,
            )

    def kill_postgres(self) -> None:
        """`kill -9` for the postmaster and its children; Patroni goes on."""
        _signal(self._postgres(), signal.SIGKILL)

    def kill(self) -> None:
        """The whole node at once."""
        _signal([*self._of_patroni(), *self._postgres()], signal.SIGKILL)
        self._end_patroni()
        self._is_frozen = False

    def freeze(self) -> None:
        assert self._patroni is not None
        _signal([*self._of_patroni(), *self._postgres()], signal.SIGSTOP)
        self._is_frozen = True

    def thaw(self) -> None:
        """If it is frozen, Postgres goes on as the primary that it was, until a new Patroni notices.

        The frozen Patroni is ended, as a watchdog does it. Patroni 3.0 that goes on renews the leader's lock as it
        remembers it, and so may take it from the new primary.
        """
        if not self._is_frozen:
            return
        self._is_frozen = False
        _signal(self._postgres(), signal.SIGCONT)
        self._end_patroni()
        self.start()

    def timeline(self) -> int:
        """Of a primary that can be written; 0 for all others."""
        limit = "-c statement_timeout=1000"
        with (
            suppress(psycopg.Error),
            psycopg.connect(self.url, connect_timeout=2, options=limit, autocommit=True) as conn,
        ):
            return _timeline(conn.execute(_TIMELINE).fetchone())
        return 0

    async def promoted(self, than: int) -> None:
        """Return when this is a primary with a newer timeline. A promotion keeps connections, so one is enough."""
        while True:
            with suppress(psycopg.Error):
                async with await psycopg.AsyncConnection.connect(self.url, autocommit=True) as conn:

                    async def is_newer(conn: psycopg.AsyncConnection[Any] = conn) -> bool:
                        return _timeline(await (await conn.execute(_TIMELINE)).fetchone()) > than

                    await eventually(is_newer, f"{self.name} as the primary", within_s=START_S)
                    return
            await asyncio.sleep(LOOK_AGAIN_S)

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def _of_patroni(self) -> list[int]:
        return [] if self._patroni is None else [self._patroni.pid, *children(self._patroni.pid)]

    def _end_patroni(self) -> None:
        _signal(self._of_patroni(), signal.SIGKILL)
        if self._patroni is not None:
            self._patroni.wait()
        self._patroni = None

    def _postgres(self) -> list[int]:
        with suppress(OSError, IndexError, ValueError):
            postmaster = int((self._data / "postmaster.pid").read_text().splitlines()[0])
            if str(self._data) in Path(f"/proc/{postmaster}/cmdline").read_text():
                return [postmaster, *children(postmaster)]
        return []


class PatroniCluster:
    """Some nodes; `url` has all of them."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self._folder = folder
        self._etcd_port = _free_port()
        self._etcd: subprocess.Popen[bytes] | None = None
        self._lines = TcpRelays()
        self.nodes = [Node(f"node{number}", folder, self._lines, self._etcd_port) for number in range(1, nodes + 1)]

    @property
    def url(self) -> str:
        """In SQLAlchemy's form."""
        hosts = "&".join(f"host=127.0.0.1:{node.port}" for node in self.nodes)
        return f"postgresql://postgres@/postgres?{hosts}&target_session_attrs=read-write"

    @property
    def libpq_url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"

    async def start(self, settings: dict[str, Any]) -> None:
        """Return when one node is the primary, and the others stream from it."""
        self._start_etcd()
        await eventually(self._has_etcd_decided, "etcd's version", within_s=START_S)
        for node in self.nodes:
            node.prepare(settings)
        # The first one alone makes the cluster, so it is the primary.
        self.nodes[0].start()
        await self._wait(lambda: asyncio.to_thread(self.nodes[0].timeline), "a primary")
        for node in self.nodes[1:]:
            node.start()
        await self.whole(is_synchronous=bool(settings.get("synchronous_mode")))

    async def whole(self, *, is_synchronous: bool = True) -> None:
        """Wait until all nodes belong to the cluster, and one standby is synchronous."""

        async def is_whole() -> bool:
            members = await asyncio.to_thread(self.members)
            roles = sorted(each["Role"] for each in members if each["State"] in {"running", "streaming"})
            first = "Sync Standby" if is_synchronous else "Replica"
            return roles == sorted(["Leader", first, *["Replica"] * (len(self.nodes) - 2)])

        await self._wait(is_whole, "all nodes in the cluster")

    def members(self) -> list[dict[str, Any]]:
        done = self._control("list", "--format", "json")
        return list(json.loads(done.stdout)) if done.returncode == 0 and done.stdout else []

    def leader(self) -> Node:
        """The node with the newest timeline that can be written."""
        timelines = {node: node.timeline() for node in self.nodes}
        node = max(self.nodes, key=timelines.__getitem__)
        assert timelines[node], "no node can be written"
        return node

    def switch_over(self, leader: Node) -> None:
        done = self._control("switchover", "--master", leader.name, "--force", "popmq")
        assert done.returncode == 0, done.stdout + done.stderr

    async def new_leader(self, former: Node, than: int) -> Node:
        """Wait until another node is a primary, with a newer timeline. The former may be silent, and is not asked."""
        found: list[Node] = []

        async def look(node: Node) -> None:
            await node.promoted(than)
            found.append(node)

        looking = [asyncio.create_task(look(node)) for node in self.nodes if node is not former]
        try:

            async def is_there() -> bool:
                return bool(found)

            await self._wait(is_there, "a new primary")
        finally:
            for each in looking:
                each.cancel()
            await asyncio.gather(*looking, return_exceptions=True)
        return found[0]

    def close(self) -> None:
        for node in self.nodes:
            node.kill()
        if self._etcd is not None:
            self._etcd.kill()
            self._etcd.wait()
        self._lines.close()

    async def _wait(self, fact: Any, what: str) -> None:
        try:
            await eventually(fact, what, within_s=START_S)
        except AssertionError as error:
            logs = "\n".join(f"{node.name}:\n{node.log[-3_000:]}" for node in self.nodes if node.is_running)
            raise AssertionError(f"{error}; logs of Patroni:\n{logs}") from None

    def _start_etcd(self) -> None:
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{_free_port()}"
        arguments = {
            "data-dir": str(self._folder / "etcd"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
        }
        with (self._folder / "etcd.log").open("ab") as log:
            self._etcd = subprocess.Popen(
                _as_unprivileged("etcd", *(f"--{name}={value}" for name, value in arguments.items())),
                stdout=log,
                stderr=log,
                cwd=self._folder,
                start_new_session=True,
            )

    async def _has_etcd_decided(self) -> bool:
        """Whether it knows the version of its cluster; before that, Patroni fails at its start."""
        with suppress(OSError):
            async with connection_to("127.0.0.1", self._etcd_port) as (reader, writer):
                writer.write(b"GET /version HTTP/1.0\r\n\r\n")
                answer = await reader.read()
            return b"etcdcluster" in answer and b"not_decided" not in answer
        return False

    def _control(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = ["patronictl", "-c", str(self.nodes[1].configuration), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@asynccontextmanager
async def patroni_cluster(*, nodes: int = 3, **settings: Any) -> AsyncIterator[PatroniCluster]:
    """A running cluster with a synchronous standby, gone afterwards. `settings` are Patroni's dynamic ones."""
    missing = {package for program, package in _PROGRAMS.items() if shutil.which(program) is None}
    if missing:
        pytest.skip(f"Debian's packages {', '.join(sorted(missing))} are not installed")
    folder = new_folder()
    cluster = PatroniCluster(folder, nodes)
    try:
        await cluster.start({"synchronous_mode": True, "primary_start_timeout": 0, **settings})
        yield cluster
    finally:
        cluster.close()
        shutil.rmtree(folder, ignore_errors=True)


def _timeline(row: Sequence[Any] | None) -> int:
    return int(row[0] or "0", 16) if row else 0


def _signal(processes: Sequence[int], number: signal.Signals) -> None:
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
