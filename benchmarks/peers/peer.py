"""What a peer is: a server to start, and a client that drives it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from benchmarks.peers.tools import Tools

BATCH_SIZE = 32
HOLD_S = 60
WAIT_S = 1  # of a receive, where there is nothing
TOPICS = ("send-1", "send-64", "batch-32", "receive-1", "receive-8", "latency", "first")
GROUP = "bench"


class Server(NamedTuple):
    """A running server: where its client finds it, its main processes, its version."""

    address: str
    pids: Sequence[int]
    version: str


class Received(NamedTuple):
    """Messages of one receive; `handle` is what the client acks them by."""

    bodies: Sequence[bytes]
    handle: Any


class Consumer(Protocol):
    """One of several consumers that share a topic's messages."""

    async def receive(self) -> Received:
        """Up to 32 messages, as soon as there is one; none after a time without any."""
        ...

    async def ack(self, received: Received) -> None:
        """Returns when the server has answered, if the peer's protocol has an answer."""
        ...


class Client(Protocol):
    """The peer's own client, as a program would use it. Its methods may be called concurrently."""

    async def prepare(self, topic: str) -> None:
        """Make the topic, and the group of its consumers."""
        ...

    async def send(self, topic: str, body: bytes) -> None:
        """Send one message; returns when the server has confirmed it."""
        ...

    async def send_batch(self, topic: str, bodies: Sequence[bytes]) -> None:
        """Send them in the way that the client has for several messages; returns when all are confirmed."""
        ...

    def consumer(self, topic: str) -> AbstractAsyncContextManager[Consumer]:
        """A consumer with a connection of its own."""
        ...


class Peer(Protocol):
    """A broker to measure. `name` is in the table; the others say what its answers promise.

    `sends` and `acks`: where a message, and the fact that it is done, are when the client goes on. `compiles`: it
    becomes fast only after some load, as a JVM does.
    """

    name: str
    compiles: bool
    sends: str
    acks: str
    driven_by: str

    def install(self, tools: Tools) -> None:
        """Raises Missing, with what to install, where it cannot be had."""
        ...

    def running(self, folder: Path) -> AbstractContextManager[Server]:
        """A new server with its data in this folder; it is stopped at the end."""
        ...

    def client(self, address: str) -> AbstractAsyncContextManager[Client]:
        """A connected client. Called in the environment that has the clients' libraries."""
        ...
