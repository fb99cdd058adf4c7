"""RocketMQ from Maven Central: a name server, and a broker with its proxy in one process."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.peers.peer import GROUP, TOPICS, Server
from benchmarks.peers.popmq import PopClient, pop_client
from benchmarks.peers.processes import START_S, free_port, process
from benchmarks.peers.tools import Tools
from popclient import ClientConfig, PopError
from popclient.aio import Producer

VERSION = "5.5.0"
ARTIFACTS = [f"org.apache.rocketmq:rocketmq-{name}:{VERSION}" for name in ("proxy", "namesrv")]
QUEUES = 8  # what its tools make by default
READ_AND_WRITE = 6


class RocketMQ:
    """Told to answer when it is on the disk."""

    name = "RocketMQ sync flush"
    flush = "SYNC_FLUSH"
    sends = "on the disk (flushDiskType SYNC_FLUSH)"
    acks = "answered, on the disk"
    driven_by = "popclient"
    compiles = True

    def install(self, tools: Tools) -> None:
        self._classpath = tools.maven("rocketmq", ARTIFACTS)

    @contextmanager
    def running(self, folder: Path) -> Iterator[Server]:
        tables = Tables({name: {"topicFilterType": "SINGLE_TAG"} for name in TOPICS}, {GROUP: {"retryMaxTimes": 16}})
        home = Home(self._classpath, folder, tables, broker={"flushDiskType": self.flush})
        with home.name_server() as names_pid, home.proxy() as pid:
            yield Server(home.address, [pid, names_pid], VERSION)

    @asynccontextmanager
    async def client(self, address: str) -> AsyncIterator[PopClient]:
        await registered(address, TOPICS)
        async with pop_client(address) as client:
            yield client


class RocketMQByDefault(RocketMQ):
    """As it comes: it writes to the disk after its answer."""

    name = "RocketMQ async flush"
    flush = "ASYNC_FLUSH"
    sends = "in memory (ASYNC_FLUSH, its default)"
    acks = "answered, in memory"


async def registered(at: str | ClientConfig, topics: Sequence[str]) -> None:
    """Wait until the broker has told the name server its topics: the port is open before."""
    until = time.monotonic() + START_S
    while True:
        try:
            async with Producer(at, topics):
                return
        except PopError:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.2)


class Tables(NamedTuple):
    """Topics and groups by name, each with its settings, as in the files of a broker. Clients cannot make them."""

    topics: Mapping[str, Mapping[str, object]]
    groups: Mapping[str, Mapping[str, object]]

    def write(self, folder: Path) -> None:
        queues = {"readQueueNums": QUEUES, "writeQueueNums": QUEUES, "perm": READ_AND_WRITE}
        consuming = {"consumeEnable": True, "retryQueueNums": 1}
        topics = {name: {"topicName": name, **queues, **settings} for name, settings in self.topics.items()}
        groups = {name: {"groupName": name, **consuming, **settings} for name, settings in self.groups.items()}
        folder.mkdir(parents=True)
        _write(folder / "topics.json", "topicConfigTable", topics)
        _write(folder / "subscriptionGroup.json", "subscriptionGroupTable", groups)


class Home:
    """A folder with a configuration and a store, out of which servers start, also again after their end."""

    def __init__(
        self,
        classpath: str,
        folder: Path,
        tables: Tables,
        *,
        brokers: Sequence[str] = ("bench",),
        broker: dict[str, object] | None = None,
        proxy: dict[str, object] | None = None,
        java: Sequence[str] = (),
        of_proxy: Sequence[str] = (),
    ) -> None:
        """brokers: the names of the masters, each with a store of its own that has all topics and groups.
        broker, proxy: further settings of theirs. java: options of all processes, such as the size of the heap.
        of_proxy: further options of a proxy in a process of its own."""
        self._classpath, self._folder, self._options, self._of_proxy = classpath, folder, java, of_proxy
        self._names_port, self._grpc_port = free_port(), free_port()
        self._broker_ports = {name: _broker_port() for name in brokers}
        folder.mkdir(parents=True, exist_ok=True)
        for name, port in self._broker_ports.items():
            tables.write(folder / name / "store" / "config")
            of_broker = _broker(name, folder / name, self._names_port, port) | (broker or {})
            (folder / f"{name}.conf").write_text(_properties(of_broker))
        names = {"listenPort": self._names_port, "bindAddress": "127.0.0.1"}
        (folder / "names.conf").write_text(_properties(names))
        (folder / "proxy.json").write_text(json.dumps(_proxy(self._names_port, self._grpc_port) | (proxy or {})))

    @property
    def address(self) -> str:
        """Where clients find the proxy."""
        return f"127.0.0.1:{self._grpc_port}"

    @property
    def name_server_address(self) -> str:
        """Where brokers, proxies and `mqadmin` find the name server."""
        return f"127.0.0.1:{self._names_port}"

    @property
    def brokers(self) -> Sequence[str]:
        """The names of the masters."""
        return list(self._broker_ports)

    def name_server(self) -> AbstractContextManager[int]:
        """A running name server; gives its pid."""
        return self._java("names", "namesrv.NamesrvStartup", self._names_port, "-c", self._folder / "names.conf")

    def broker(self, name: str) -> AbstractContextManager[int]:
        """A running broker in a process of its own; gives its pid."""
        conf = self._folder / f"{name}.conf"
        return self._java(name, "broker.BrokerStartup", self._broker_ports[name], "-c", conf)

    def proxy(self) -> AbstractContextManager[int]:
        """The first broker with the proxy in one process; gives its pid."""
        name = self.brokers[0]
        files = ("-bc", self._folder / f"{name}.conf", "-pc", self._folder / "proxy.json")
        return self._java(name, "proxy.ProxyStartup", self._grpc_port, "-pm", "local", *files)

    def proxy_alone(self) -> AbstractContextManager[int]:
        """A proxy in a process of its own, for all brokers; gives its pid."""
        options = ("-pm", "cluster", "-pc", self._folder / "proxy.json")
        return self._java("proxy", "proxy.ProxyStartup", self._grpc_port, *options, machine=self._of_proxy)

    @contextmanager
    def broker_and_proxy(self) -> Iterator[int]:
        """The first broker, and a proxy in a process of its own; gives the proxy's pid."""
        with self.broker(self.brokers[0]), self.proxy_alone() as pid:
            yield pid

    def _java(
        self, name: str, program: str, port: int, *options: str | Path, machine: Sequence[str] = ()
    ) -> AbstractContextManager[int]:
        logs = self._folder / name  # RocketMQ's own logs; two processes must not share them
        logs.mkdir(exist_ok=True)
        command = ["java", *self._options, *machine, "-cp", self._classpath, f"-Duser.home={logs}"]
        home = {"ROCKETMQ_HOME": str(self._folder), "RMQ_PROXY_HOME": str(self._folder)}
        return process([*command, f"org.apache.rocketmq.{program}", *options], self._folder, port, home)


def _broker(name: str, folder: Path, names_port: int, port: int) -> dict[str, object]:
    return {
        "brokerName": name,
        "brokerIP1": "127.0.0.1",
        "namesrvAddr": f"127.0.0.1:{names_port}",
        "listenPort": port,
        "haListenPort": free_port(),
        "storePathRootDir": folder / "store",
    }


def _broker_port() -> int:
    """A broker also listens two ports below."""
    while True:
        port = free_port()
        try:
            with socket.socket() as below:
                below.bind(("127.0.0.1", port - 2))
        except OSError:
            continue
        return port


def _proxy(names_port: int, grpc_port: int) -> dict[str, object]:
    return {
        "rocketMQClusterName": "DefaultCluster",
        "namesrvAddr": f"127.0.0.1:{names_port}",
        "grpcServerPort": grpc_port,
        "remotingListenPort": free_port(),
    }


def _write(path: Path, table: str, rows: Mapping[str, Any]) -> None:
    path.write_text(json.dumps({"dataVersion": {"counter": 1, "timestamp": 1, "stateVersion": 0}, table: rows}))


def _properties(values: Mapping[str, object]) -> str:
    return "".join(f"{name}={value}\n" for name, value in values.items())
