"""What an operator asks of a client over its telemetry stream, and the client's answers (protocol 3.4).

A command has a nonce, and the answer brings it back. An answer counts if it comes from the client that was asked.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from popserver.model.errors import NoAnswer, NotFound, PopError, TooManyRequests
from popserver.model.message import StoredMessage

WAITING_MAX = 100  # commands at a time; each may have a message with it
ANSWER_WITHIN_S = 5.0  # as RocketMQ's proxy waits
VERIFIED_WITHIN_S = 15.0  # the listener consumes a message meanwhile
WRITTEN_WITHIN_S = 5.0  # a stream that takes nothing for so long is broken


class PrintThreads(NamedTuple):
    """Answered with the stack traces of the client's threads."""


class TryMessage(NamedTuple):
    """Has the client's listener consume the message on trial; answered with an `Outcome`."""

    stored: StoredMessage


class Reconnect(NamedTuple):
    """Has the client open its connections anew. It does not answer."""


class Outcome(NamedTuple):
    """How a trial ended, as the client says: a code of the wire, and a sentence that may be empty."""

    code: int
    sentence: str


Command = PrintThreads | TryMessage | Reconnect
Answer = str | Outcome
# Writes a command with its nonce to a client's stream; raises `PopError` where the client may not have it.
Tell = Callable[[Command, str], Awaitable[None]]


class _Asked(NamedTuple):
    client_id: str
    answer: asyncio.Future[Answer | PopError]


class Commands:
    """The streams of clients that have told their settings, and what they were asked and have not answered."""

    def __init__(self) -> None:
        self._streams: dict[str, tuple[object, Tell]] = {}
        self._asked: dict[str, _Asked] = {}

    def joined(self, client_id: str, stream: object, tell: Tell) -> None:
        """The client can be asked; the newest of its streams counts."""
        self._streams[client_id] = (stream, tell)

    def left(self, client_id: str, stream: object) -> None:
        """The stream has ended, and with it what was asked on it."""
        if self._streams.get(client_id, (None,))[0] is not stream:
            return
        del self._streams[client_id]
        for asked in self._asked.values():
            if asked.client_id == client_id and not asked.answer.done():
                asked.answer.set_result(NotFound(f"client '{client_id}' has left before it answered"))

    async def tell(self, client_id: str, command: Command, nonce: str = "") -> None:
        """Write it to the client's stream. Raises `NotFound` where the client has none here, `NoAnswer`."""
        known = self._streams.get(client_id)
        if known is None:
            raise NotFound(
                f"client '{client_id[:255]}' has no session with this server; list those that have one with:"
                " popmq client list (of several servers each knows its own)"
            )
        try:
            await asyncio.wait_for(known[1](command, nonce or uuid.uuid4().hex), WRITTEN_WITHIN_S)
        except TimeoutError:
            raise _no_answer(client_id, WRITTEN_WITHIN_S) from None

    async def ask(self, client_id: str, command: Command, within_s: float) -> Answer:
        """The client's answer. Raises as `tell` does, and `TooManyRequests`."""
        if len(self._asked) >= WAITING_MAX:
            raise TooManyRequests(
                f"{WAITING_MAX} commands wait for their clients' answers, which is the limit; ask later"
            )
        nonce = uuid.uuid4().hex
        answer: asyncio.Future[Answer | PopError] = asyncio.get_running_loop().create_future()
        self._asked[nonce] = _Asked(client_id, answer)
        try:
            await self.tell(client_id, command, nonce)
            said = await asyncio.wait_for(answer, within_s)
        except TimeoutError:
            raise _no_answer(client_id, within_s) from None
        finally:
            del self._asked[nonce]
        if isinstance(said, PopError):
            raise said
        return said

    def answered(self, client_id: str, nonce: str, answer: Answer) -> None:
        """The client said this. It is dropped if it was not asked for, or is not waited for any more."""
        asked = self._asked.get(nonce)
        if asked is not None and asked.client_id == client_id and not asked.answer.done():
            asked.answer.set_result(answer)


def _no_answer(client_id: str, within_s: float) -> NoAnswer:
    return NoAnswer(
        f"client '{client_id}' has not answered within {within_s:g} s; it may be busy, or its library may not know the"
        " command"
    )
