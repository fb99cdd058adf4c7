"""Message ids, version 1 (protocol 4.4): 34 upper-case hex digits that no two messages share.

    01  | MAC address | process id | seconds since 2021-01-01 UTC | sequence
    1 B | 6 B         | 2 B        | 4 B                          | 4 B         big-endian

The sequence starts at a random number: hosts cloned from one image may share a MAC address, process id and second, and
a server that drops repeated ids would then drop a stranger's message.
"""

from __future__ import annotations

import itertools
import os
import secrets
import time
import uuid
from typing import Final, NamedTuple

EPOCH_2021: Final = 1_609_459_200


class MessageId(NamedTuple):
    """The parts of a version 1 id; `seconds` count from 2021-01-01T00:00:00Z."""

    mac: int
    process_id: int
    seconds: int
    sequence: int


def encode(parts: MessageId) -> str:
    """The id as text; each part keeps its low bytes."""
    return (
        f"01{parts.mac & 0xFFFFFFFFFFFF:012X}{parts.process_id & 0xFFFF:04X}"
        f"{parts.seconds & 0xFFFFFFFF:08X}{parts.sequence & 0xFFFFFFFF:08X}"
    )


class _Generator:
    """Draws ids for one process; safe in threads, because one bytecode takes the next number."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self._prefix = encode(MessageId(uuid.getnode(), os.getpid(), 0, 0))[:18]
        self._numbers = itertools.count(secrets.randbits(32))

    def draw(self) -> str:
        seconds = int(time.time()) - EPOCH_2021
        return f"{self._prefix}{seconds & 0xFFFFFFFF:08X}{next(self._numbers) & 0xFFFFFFFF:08X}"


_generator = _Generator()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_generator.renew)


def new_message_id() -> str:
    """A new id, unique also among forked processes."""
    return _generator.draw()
