"""Commands of operators to clients over the telemetry stream, and the clients' answers (protocol 3.4).

A command has a nonce, and its answer has the same. An answer counts only if it comes from the client that was asked.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

from popserver.model.errors import NoAnswer, NotFound, PopError, TooManyRequests
from popserver.model.message import StoredMessage

WAITING_MAX = 100  # commands at a time; each may carry a message
ANSWER_WITHIN_S = 5.0  # as in RocketMQ's proxy
VERIFIED_WITHIN_S = 15.0  # longer, because the listener consumes a message
WRITTEN_WITHIN_S = 5.0  # a stream that accepts no data for this long counts as broken


class PrintThreads(NamedTuple):
    """Ask for the stack traces of the client's threads."""


class TryMessage(NamedTuple):
    """Let the client's listener consume the message as a test. The answer is an `Outcome`."""

    stored: StoredMessage


class Reconnect(NamedTuple):
    """Let the client reopen its connections. There is no answer."""


class Outcome(NamedTuple):
    """The client's result of a test: a code of the protocol, and a sentence that may be empty."""

    code: int
    sentence: str


class LoseLiteTopic(NamedTuple):
    """Notify the client that another client of its exclusive group has this lite topic now. There is no answer."""

    lite_topic: str


Command = PrintThreads | TryMessage | Reconnect | LoseLiteTopic
Answer = str | Outcome
# Writes a command with its nonce to a client's stream; raises `PopError` if the client may not get it.
SendCommand = Callable[[Command, str], Awaitable[None]]


class _Asked(NamedTuple):
    client_id: str
    answer: asyncio.Future[Answer | PopError]


class Commands:
    """The streams of clients that have sent their settings, and the commands that are not answered yet."""

    def __init__(self) -> None:
        self._streams: dict[str, tuple[object, SendCommand]] = {}
        self._asked: dict[str, _Asked] = {}

    def joined(self, client_id: str, stream: object, send: SendCommand) -> None:
        """The client can get commands; its newest stream counts."""
        self._streams[client_id] = (stream, send)

    def left(self, client_id: str, stream: object) -> None:
        """The stream has ended; its open commands get no answer."""
        if self._streams.get(client_id, (None,))[0] is not stream:
            return
        del self._streams[client_id]
        for asked in self._asked.values():
            if asked.client_id == client_id and not asked.answer.done():
                asked.answer.set_result(NotFound(f"client '{client_id}' disconnected before it answered"))

    async def send(self, client_id: str, command: Command, nonce: str = "") -> None:
        """Write a command to the client's stream. Raises `NotFound` if it has none here, `NoAnswer` if it is stuck."""
        known = self._streams.get(client_id)
        if known is None:
            raise NotFound(
                f"client '{client_id[:255]}' has no session with this server; list the connected clients with:"
                " popmq client list (each of several servers has its own list)"
            )
        try:
            await asyncio.wait_for(known[1](command, nonce or uuid.uuid4().hex), WRITTEN_WITHIN_S)
        except TimeoutError:
            raise _no_answer(client_id, WRITTEN_WITHIN_S) from None

    async def lose_lite_topic(self, client_id: str, lite_topic: str) -> None:
        """Notify a client that it has lost a lite topic, if it has a session here. A lost notice is repeated when the
        client names its lite topics again."""
        with suppress(PopError):
            await self.send(client_id, LoseLiteTopic(lite_topic))

    async def turn(self, client_id: str) -> None:
        """Let a client of PopMQ go to another of its addresses, if it has a session here."""
        with suppress(PopError):
            await self.send(client_id, Reconnect())

    async def ask(self, client_id: str, command: Command, within_s: float) -> Answer:
        """The client's answer. Raises as `send` does, and `TooManyRequests`."""
        if len(self._asked) >= WAITING_MAX:
            raise TooManyRequests(
                f"{WAITING_MAX} commands wait for answers of clients, and this is the limit; repeat the request later"
            )
        nonce = uuid.uuid4().hex
        answer: asyncio.Future[Answer | PopError] = asyncio.get_running_loop().create_future()
        self._asked[nonce] = _Asked(client_id, answer)
        try:
            await self.send(client_id, command, nonce)
            answered = await asyncio.wait_for(answer, within_s)
        except TimeoutError:
            raise _no_answer(client_id, within_s) from None
        finally:
            del self._asked[nonce]
        if isinstance(answered, PopError):
            raise answered
        return answered

    def answered(self, client_id: str, nonce: str, answer: Answer) -> None:
        """A client's answer. It is ignored if no call waits for it."""
        asked = self._asked.get(nonce)
        if asked is not None and asked.client_id == client_id and not asked.answer.done():
            asked.answer.set_result(answer)


def _no_answer(client_id: str, within_s: float) -> NoAnswer:
    return NoAnswer(
        f"client '{client_id}' has not answered within {within_s:g} s; it may be busy, or its library may not know the"
        " command"
    )
