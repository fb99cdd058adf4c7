"""PopMQ as a process of its own, or two of them on one Postgres."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from popclient import ClientConfig, Tls
from popclient.admin import Admin
from popserver.lite.subscriptions import LITE_SUBSCRIPTIONS_MAX
from tests.interop.matrix.stage import DOCTORS, SIGNED, Needs, Scene, Servers
from tests.support.certificates import Authority
from tests.support.server_process import ServerProcess

ROOT = ("root", "root-has-a-secret")
# Nothing makes itself there; what takes long by default is short.
OPTIONS = ("--no-auto-create", "--min-invisible", "1s", "--transaction-timeout", "3s")

T = TypeVar("T")


class PopMQ(Servers):
    """Servers that run, and what an operator does with them."""

    shortest_hold_s = 1
    lite_quota = LITE_SUBSCRIPTIONS_MAX

    def __init__(self, name: str, servers: list[ServerProcess], certificate: Path, loop: Loop, needs: Needs) -> None:
        self.name = name
        self.count = len(servers)
        self.endpoint = servers[0].endpoint
        self.endpoints = ";".join(each.endpoint for each in servers)
        self.certificate = certificate
        self._dialled = servers[0]
        self._loop = loop
        key, secret = ROOT if needs.signs else ("", "")
        tls = Tls(ca=certificate) if needs.has_tls else False
        self._admin = Admin(ClientConfig(self.endpoint, access_key=key, access_secret=secret, tls=tls))
        self._admin.create_group(DOCTORS)
        if needs.signs:
            self._admin.create_user(*SIGNED)
            self._admin.add_policy(SIGNED[0], "ALLOW", ["PUB", "SUB"], "TOPIC", "signed*")
            self._admin.add_policy(SIGNED[0], "ALLOW", ["SUB"], "GROUP", "signed*")

    def prepare(self, topic: str, group: str, scene: Scene) -> None:
        self._admin.create_topic(topic, accept_message_types=[scene.accepts])
        self._admin.create_group(
            group, max_attempts=scene.max_attempts, retry_intervals=[1], fifo_retry_interval=1, lite=scene.lite
        )

    def is_done(self, topic: str, group: str) -> bool:
        return all(
            each.offset == each.max_offset and not each.ready + each.inflight + each.waiting_retry
            for each in self._admin.list_lag(group, topic)
        )

    def stop(self) -> None:
        self._loop.do(self._dialled.stop())

    def kill(self) -> None:
        self._loop.do(self._dialled.kill())

    def start(self) -> None:
        self._loop.do(self._dialled.start())

    def close(self) -> None:
        self._admin.close()


class Loop:
    """An event loop in a thread of its own, which reads what the servers say."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def running(name: str, database_url: str, folder: Path, *, count: int, needs: Needs) -> Iterator[PopMQ]:
    """`count` servers on the database; those that want signatures know one user."""
    authority = Authority(folder)
    pair = authority.issue("server")
    options = [*OPTIONS, "--tls-cert", str(pair.cert), "--tls-key", str(pair.key)]
    under = []
    if needs.has_tls:
        options += ["--tls", "tls"]
    if needs.signs:
        options.append("--auth")
        under = ["env", f"POPMQ_ADMIN_ACCESS_KEY={ROOT[0]}", f"POPMQ_ADMIN_SECRET={ROOT[1]}"]
    with ExitStack() as ended:
        loop = Loop()
        ended.callback(loop.close)
        servers = []
        for _ in range(count):
            server = ServerProcess(database_url, *options, under=under)
            loop.do(server.start())
            ended.callback(_end, loop, server)
            servers.append(server)
        popmq = PopMQ(name, servers, authority.ca, loop, needs)
        ended.callback(popmq.close)
        yield popmq


def _end(loop: Loop, server: ServerProcess) -> None:
    if server.is_running:
        loop.do(server.kill())
