"""What a target of fuzzing is: it draws inputs, and judges one input."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from typing import ClassVar

EDGES = (0, 1, 2, 31, 32, 127, 128, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64)
_CHARACTERS = "aZ09 _-+.,:;'\"\\/{}[]()<>=%|\n\r\t\x00\x7fé٣\u2028\U0001f600"
_BYTES_MAX = 64 * 1024


class FuzzViolation(AssertionError):
    """The product broke its rules for this input."""


class TooSlow(FuzzViolation):
    """The input takes more time than one of its size may take."""


class FuzzTarget(ABC):
    """One parser, or a server. A parser has no state that one input could leave to the next."""

    name: ClassVar[str]
    short: ClassVar[int] = 5_000  # inputs of a run in the tests
    tries: ClassVar[int] = 400  # judgements to make the input of a finding smaller
    bar_s: ClassVar[float] = 0.025  # seconds of the processor for an input, besides those for its size
    leaked: ClassVar[int] = 500  # inputs that are judged again and again to find a leak
    leak_bytes_max: ClassVar[int] = 16  # that an input may leave, on the average
    leak_rounds: ClassVar[int] = 3  # as often in a row memory has to grow: caches that fill up are no leak
    has_state: ClassVar[bool] = False  # a server's memory depends on all inputs that it got

    reached = ""  # what the last input led to, for targets that can say it: one input of each kind is kept
    age = 0  # how many inputs have met the state that they change; it may begin anew

    @abstractmethod
    def draw(self, dice: random.Random) -> bytes:
        """An input by the target's grammar: legal ones, nearly legal ones and hostile ones."""

    @abstractmethod
    def judge(self, data: bytes) -> int:
        """Feed any bytes to the product; the number of comparisons with an independent answer.

        Raises `FuzzViolation` for a wrong answer. Any other exception is one that the product should not have raised.
        """

    def close(self) -> None:
        """Free what the target has started."""
        return


def a_text(dice: random.Random, longest: int = 12) -> str:
    """A short text of characters that parsers treat differently."""
    return "".join(dice.choice(_CHARACTERS) for _ in range(dice.randrange(longest + 1)))


def a_number(dice: random.Random) -> int:
    """A whole number at a limit or beside it, of either sign."""
    return dice.choice((1, 1, -1)) * (dice.choice(EDGES) + dice.choice((-1, 0, 0, 1)))


def mutated(data: bytes, dice: random.Random) -> bytes:
    """The input with one to four damages: bits, bytes, cuts, doubled and moved parts."""
    changed = bytearray(data or b"\0")
    for _ in range(dice.randrange(1, 5)):
        at = dice.randrange(len(changed) + 1)
        end = min(len(changed), at + dice.randrange(1, 9))
        match dice.randrange(6):
            case 0 if at < len(changed):
                changed[at] ^= 1 << dice.randrange(8)
            case 1:
                changed[at:at] = bytes([dice.randrange(256)])
            case 2:
                del changed[at:end]
            case 3:
                changed[at:at] = changed[at:end] * dice.choice((1, 2, 8, 300))
            case 4:
                changed[at:end] = dice.choice((b"", b"\xff", b"\0", b"-1", b"9" * 20, b"'", b'"', b"[", b"null"))
            case _:
                del changed[at:]
        del changed[_BYTES_MAX:]
    return bytes(changed)


def grown(data: bytes, dice: random.Random) -> bytes:
    """The input with a part repeated until it is long: what takes more than proportional time shows then."""
    at = dice.randrange(len(data) or 1)
    part = data[at : at + dice.choice((1, 2, 4, 8, len(data)))] or b"\0"
    longer = dice.choice((4_096, 4_096, 4_096, 16_384, 16_384, _BYTES_MAX)) - len(data)
    return data[:at] + part * (longer // len(part) + 1) + data[at + len(part) :]


def must(holds: bool, what: str) -> None:
    """Raises `FuzzViolation` with the sentence if it does not hold."""
    if not holds:
        raise FuzzViolation(what)
