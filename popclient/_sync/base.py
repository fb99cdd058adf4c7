# Made by scripts/unasync.py from popclient/aio/base.py. Do not edit.
"""The base of all asyncio clients: their start and end, and their ids."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, Protocol, Self, TypeVar

from popclient._arguments import not_copied
from popclient._engine.life import ConsumerLife
from popclient._loop import LoopThread
from popclient._session.session import Session
from popclient._sync.signals import Ending
from popclient.config import ClientConfig


class Core(Protocol):
    session: Session


AnyCore = TypeVar("AnyCore", bound=Core)
ListenerCore = TypeVar("ListenerCore", bound=ConsumerLife)


class BaseClient(ABC, Generic[AnyCore]):
    """A client as users see it; it calls its core over a bridge. A block starts the client, and closes it."""

    __reduce__ = not_copied
    _config: ClientConfig
    _bridge: LoopThread
    _core: AnyCore

    @property
    def client_id(self) -> str:
        """By which the server knows this client: in holds, in `popmq client list`, in its log."""
        return self._core.session.client_id

    @property
    def healthy(self) -> bool:
        """Is the session with the server up?"""
        return self._core.session.healthy

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        group = "" if self._core.session.group is None else f" group={self._core.session.group!r}"
        return f"<{type(self).__name__} {self._config.endpoints}{group} {self._state}>"

    @property
    def _state(self) -> str:
        return "healthy" if self.healthy else "not connected"


class BaseConsumer(BaseClient[AnyCore]):
    @property
    def group(self) -> str:
        """The name of its consumer group."""
        return self._core.session.group or ""


class ListenerConsumer(BaseConsumer[ListenerCore]):
    """A consumer that calls a listener."""

    @property
    def healthy(self) -> bool:
        """Is the session with the server up, and has nothing ended this consumer?"""
        return super().healthy and self._core.refusal is None

    def run(self) -> None:
        """Consumes until `close`, SIGTERM or SIGINT, and closes the consumer.

        It takes signals in the main thread alone. Raises the server's refusal if that ends it: its rights were
        withdrawn, or its group was deleted.
        """
        with Ending() as ending:
            self._core.when_ended = ending.set
            with self:
                ending.wait()
                ending.restore_signals()  # a second signal does not wait for the draining
        self._core.raise_refusal()

    def raise_refusal(self) -> None:
        """Raises the refusal that has ended the consumer, if there is one. `run` does so by itself."""
        self._core.raise_refusal()

    def _start(self) -> None:
        self._bridge.close_at_exit(self._core)
        self._bridge.run(self._core.start)

    def close(self) -> None:
        """Receives nothing more, waits up to `drain_timeout` for calls of the listener that have begun, settles what
        they have consumed, and ends the session within `close_timeout`.

        The server delivers the other messages again; their attempt does not count. Closing twice is fine. In the
        listener it returns at once, and the consumer ends after it.
        """
        drain_timeout = self._core.drain_timeout
        if self._core.is_inside():
            self._bridge.post(lambda: self._core.begin_closing(drain_timeout))
        else:
            self._bridge.close(lambda: self._core.close(drain_timeout), self._core)
