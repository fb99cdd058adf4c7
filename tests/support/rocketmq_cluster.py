"""A RocketMQ cluster from Maven Central on this machine: a name server, two masters, a proxy in cluster mode.

Each is a process of its own with its port, which a test kills and starts again by its name.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from benchmarks.peers.rocketmq import ARTIFACTS, Home, Tables, registered
from benchmarks.peers.tools import Tools

NAME_SERVER, PROXY = "name server", "proxy"
BROKERS = ("broker-a", "broker-b")
JAVA = ("-Xms256m", "-Xmx512m", "-XX:MaxDirectMemorySize=512m")
# Four processes, on a machine with a few cores. With 128 MiB of direct memory a broker lost its retries and long polls.
SMALL = ("-Xms64m", "-Xmx384m", "-XX:MaxDirectMemorySize=512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
# What is switched off, or takes long, by default.
BROKER: Mapping[str, object] = {
    "autoCreateTopicEnable": "false",
    "autoCreateSubscriptionGroup": "false",
    "enablePropertyFilter": "true",
    "recallMessageEnable": "true",
    "transactionTimeOut": 10_000,  # a slow machine must decide in this time
    "transactionCheckInterval": 3_000,
    "osPageCacheBusyTimeOutMills": 30_000,  # else a machine that pauses makes it refuse messages
    "mappedFileSizeCommitLog": 64 << 20,
    "mappedFileSizeTimerLog": 16 << 20,
}
SOON = {"registerNameServerPeriod": 10_000}  # the shortest: so long a name server that came back knows nothing


class Cluster:
    """Its processes by name: NAME_SERVER, those of BROKERS, PROXY."""

    def __init__(self, home: Home) -> None:
        self.endpoint = home.address
        """host:port of the proxy, for clients."""
        self.name_server = home.name_server_address
        """host:port of the name server, for what speaks RocketMQ's remoting protocol."""
        self.brokers = home.brokers
        """The names of the masters."""
        self._home = home
        self._running: dict[str, ExitStack] = {}
        self._pids: dict[str, int] = {}

    def start(self, name: str) -> None:
        """Start a process that does not run, with its port and its store; returns when its port is open.

        A broker needs a moment more until the name server and the proxy know it."""
        if name in self._running:
            raise ValueError(f"{name} runs already; kill or stop it first")
        with ExitStack() as running:
            self._pids[name] = running.enter_context(self._process(name))
            self._running[name] = running.pop_all()

    def kill(self, name: str) -> None:
        """kill -9."""
        os.kill(self._pids[name], signal.SIGKILL)
        self.stop(name)

    def stop(self, name: str) -> None:
        """End it as an operator does; returns when it has ended."""
        self._running.pop(name).close()

    def stop_all(self) -> None:
        for name in reversed(list(self._running)):
            self.stop(name)

    def _process(self, name: str) -> AbstractContextManager[int]:
        if name == NAME_SERVER:
            return self._home.name_server()
        return self._home.proxy_alone() if name == PROXY else self._home.broker(name)


@contextmanager
def cluster(
    folder: Path,
    topics: Mapping[str, Mapping[str, object]],
    groups: Mapping[str, Mapping[str, object]],
    *,
    broker: Mapping[str, object] | None = None,
    proxy: Mapping[str, object] | None = None,
) -> Iterator[Cluster]:
    """A running cluster that knows these topics and groups, each at both masters. Raises Missing without Java or Maven.

    topics, groups: by name, with settings as RocketMQ's files have them: `{"attributes": {"message.type": "FIFO"}}`,
    `{"consumeMessageOrderly": True}`. broker, proxy: further settings of both masters, and of the proxy."""
    home = Home(
        classpath(),
        folder / "rocketmq",
        Tables(topics, groups),
        brokers=BROKERS,
        broker={**BROKER, **SOON, **(broker or {})},
        proxy=dict(proxy or {}),
        java=SMALL,
    )
    running = Cluster(home)
    try:
        running.start(NAME_SERVER)
        with ThreadPoolExecutor() as starting:
            list(starting.map(running.start, BROKERS))
        running.start(PROXY)  # a proxy wants to find brokers
        asyncio.run(registered(running.endpoint, list(topics)))
        yield running
    finally:
        running.stop_all()


def accepting(kind: str) -> dict[str, object]:
    """The settings of a topic for messages of this type: NORMAL, FIFO, DELAY, TRANSACTION, LITE, PRIORITY, MIXED."""
    return {"attributes": {"message.type": kind}}


def classpath() -> str:
    """Of RocketMQ's jars, kept beside the environment that runs the tests. Raises Missing."""
    return Tools(Path(sys.prefix) / ".rocketmq").maven("rocketmq", ARTIFACTS)
