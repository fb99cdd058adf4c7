"""HTTP/2: what a client sends on a connection, as `tests/http2/fuzz.py` draws, damages and judges it."""

from __future__ import annotations

import random
import zlib
from typing import ClassVar

from proof.fuzz.target import FuzzTarget
from tests.http2.fuzz import conversation, damaged, feed


class FramesTarget(FuzzTarget):
    """Input: the bytes of a connection. They arrive in pieces whose sizes follow from them."""

    name: ClassVar[str] = "frames"
    short: ClassVar[int] = 500  # the tests of HTTP/2 have as many as they need

    def draw(self, dice: random.Random) -> bytes:
        data = conversation(dice)
        return damaged(dice, data) if dice.random() < 0.8 else data

    def judge(self, data: bytes) -> int:
        feed(random.Random(zlib.crc32(data)), data)
        return 0
