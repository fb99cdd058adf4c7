"""Clients in programs that fork while they work, as a Celery worker does for each child that it replaces.

gRPC does not work in a child of a process that has an open client (`popclient._forks`). So what is here closes its
clients before a fork. After it the parent opens them again, and the child makes its own when it needs them.
"""

from __future__ import annotations

import os
import threading
import weakref
from abc import ABC, abstractmethod
from typing import Final

from popclient import ClientClosed, ClientConfig, Message, Producer, SendReceipt


class AroundForks(ABC):
    """Something with clients that may not be open during a fork. The lock is held from before a fork until after it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        _watched.add(self)

    @abstractmethod
    def suspend(self) -> None:
        """Closes the clients."""

    @abstractmethod
    def resume(self) -> None:
        """In the parent: opens again what cannot wait for its next use."""

    @abstractmethod
    def forget(self) -> None:
        """In the child: drops what belongs to the parent."""


class ForkingProducer(AroundForks):
    """A producer that opens at its first message, and again after each fork, in the parent and in the child.

    Safe in threads.
    """

    def __init__(self, config: ClientConfig) -> None:
        super().__init__()
        self._config = config
        self._producer: Producer | None = None

    def start(self) -> None:
        """Raises Unreachable, Unauthorized and so on, if the server does not take messages from this client."""
        try:
            self._open().start()
        except BaseException:
            self.close()
            raise

    def send(self, message: Message) -> SendReceipt:
        """As `Producer.send`."""
        while True:
            producer = self._open()
            try:
                return producer.send(message)
            except ClientClosed:
                if producer is self._producer:  # not closed for a fork of another thread
                    raise

    def suspend(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()

    def resume(self) -> None:
        """Nothing: the next message opens it."""

    def forget(self) -> None:
        self._producer = None

    close = suspend

    def _open(self) -> Producer:
        with self.lock:
            if self._producer is None:
                self._producer = Producer(self._config)
            return self._producer


_watched: Final[weakref.WeakSet[AroundForks]] = weakref.WeakSet()
_suspended: Final[list[AroundForks]] = []
_one_fork = threading.Lock()


def _before() -> None:
    _one_fork.acquire()
    for each in list(_watched):
        each.lock.acquire()
        _suspended.append(each)
        each.suspend()


def _in_parent() -> None:
    while _suspended:
        each = _suspended.pop()
        each.resume()
        each.lock.release()
    _one_fork.release()


def _in_child() -> None:
    global _one_fork
    _one_fork = threading.Lock()
    while _suspended:
        each = _suspended.pop()
        each.lock = threading.RLock()
        each.forget()


# What is registered last is called first: before popclient's own look at open clients.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
