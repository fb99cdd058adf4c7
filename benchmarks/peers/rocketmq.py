"""RocketMQ from Maven Central: a name server, and a broker with its proxy in one process."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.peers.peer import GROUP, TOPICS, Server
from benchmarks.peers.popmq import PopClient, pop_client
from benchmarks.peers.processes import START_S, free_port, process
from benchmarks.peers.tools import Tools
from popclient import PopError
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
        names_port, grpc_port = free_port(), free_port()
        _write_tables(folder / "store" / "config")
        names, broker, proxy = folder / "names.conf", folder / "broker.conf", folder / "proxy.json"
        names.write_text(_properties({"listenPort": names_port, "bindAddress": "127.0.0.1"}))
        broker.write_text(_properties(_broker(folder, names_port, self.flush)))
        proxy.write_text(json.dumps(_proxy(names_port, grpc_port)))
        home = {"ROCKETMQ_HOME": str(folder), "RMQ_PROXY_HOME": str(folder)}
        names_command = self._java(folder, "namesrv.NamesrvStartup", "-c", names)
        proxy_command = self._java(folder, "proxy.ProxyStartup", "-pm", "local", "-bc", broker, "-pc", proxy)
        with (
            process(names_command, folder, names_port, home) as names_pid,
            process(proxy_command, folder, grpc_port, home) as pid,
        ):
            yield Server(f"127.0.0.1:{grpc_port}", [pid, names_pid], VERSION)

    def _java(self, folder: Path, program: str, *options: str | Path) -> Sequence[str | Path]:
        return ["java", "-cp", self._classpath, f"-Duser.home={folder}", f"org.apache.rocketmq.{program}", *options]

    @asynccontextmanager
    async def client(self, address: str) -> AsyncIterator[PopClient]:
        await _registered(address)
        async with pop_client(address) as client:
            yield client


class RocketMQByDefault(RocketMQ):
    """As it comes: it writes to the disk after its answer."""

    name = "RocketMQ async flush"
    flush = "ASYNC_FLUSH"
    sends = "in memory (ASYNC_FLUSH, its default)"
    acks = "answered, in memory"


async def _registered(address: str) -> None:
    """Wait until the broker has told the name server its topics: the port is open before."""
    until = time.monotonic() + START_S
    while True:
        try:
            async with Producer(address, TOPICS):
                return
        except PopError:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.2)


def _broker(folder: Path, names_port: int, flush: str) -> dict[str, object]:
    return {
        "brokerName": "bench",
        "brokerIP1": "127.0.0.1",
        "namesrvAddr": f"127.0.0.1:{names_port}",
        "listenPort": free_port(),
        "haListenPort": free_port(),
        "storePathRootDir": folder / "store",
        "flushDiskType": flush,
    }


def _proxy(names_port: int, grpc_port: int) -> dict[str, object]:
    return {
        "rocketMQClusterName": "DefaultCluster",
        "namesrvAddr": f"127.0.0.1:{names_port}",
        "grpcServerPort": grpc_port,
        "remotingListenPort": free_port(),
    }


def _write_tables(folder: Path) -> None:
    """The topics and the group, which clients of its proxy cannot make, as the broker reads them when it starts."""
    queues = {"readQueueNums": QUEUES, "writeQueueNums": QUEUES, "perm": READ_AND_WRITE}
    topics = {name: {"topicName": name, "topicFilterType": "SINGLE_TAG", **queues} for name in TOPICS}
    groups = {GROUP: {"groupName": GROUP, "consumeEnable": True, "retryQueueNums": 1, "retryMaxTimes": 16}}
    folder.mkdir(parents=True)
    _write(folder / "topics.json", "topicConfigTable", topics)
    _write(folder / "subscriptionGroup.json", "subscriptionGroupTable", groups)


def _write(path: Path, table: str, rows: Mapping[str, Any]) -> None:
    path.write_text(json.dumps({"dataVersion": {"counter": 1, "timestamp": 1, "stateVersion": 0}, table: rows}))


def _properties(values: Mapping[str, object]) -> str:
    return "".join(f"{name}={value}\n" for name, value in values.items())
