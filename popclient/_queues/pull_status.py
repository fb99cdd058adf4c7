"""What the answer to a pull means. The protocol says it by a status code and the next offset together."""

from __future__ import annotations

from enum import StrEnum

from popclient.errors import UnexpectedAnswer
from popproto.v2 import definition_pb2 as pb


class PullStatus(StrEnum):
    """FOUND: messages came, though a second look at their tags may refuse all of them.
    NO_NEW_MSG: the queue ends here. NO_MATCHED_MSG: nothing wanted up to the next offset, which counts as consumed.
    OFFSET_ILLEGAL: the queue has no such place; the next offset is the server's correction.
    """

    FOUND = "FOUND"
    NO_NEW_MSG = "NO_NEW_MSG"
    NO_MATCHED_MSG = "NO_MATCHED_MSG"
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"


def pull_status(code: int, next_offset: int, offset: int) -> PullStatus:
    """The meaning of the answer to a pull from `offset`: its status code, and the offset it says to go on from.

    Raises UnexpectedAnswer for a code that no pull is answered with, and for a next offset that no queue has: going on
    at a guess would lose messages or repeat them for ever.
    """
    if code not in (pb.OK, pb.MESSAGE_NOT_FOUND, pb.ILLEGAL_OFFSET):
        raise UnexpectedAnswer(f"the pull from offset {offset} was answered {code}, which says nothing of the queue")
    if next_offset < 0:
        raise UnexpectedAnswer(f"the pull from offset {offset} is to go on from {next_offset}; it must be 0 or more")
    if code == pb.OK:
        return PullStatus.FOUND
    if code == pb.ILLEGAL_OFFSET:
        return PullStatus.OFFSET_ILLEGAL
    return PullStatus.NO_MATCHED_MSG if next_offset > offset else PullStatus.NO_NEW_MSG


def backwards(offset: int, next_offset: int, first_offset: int | None) -> str | None:
    """A sentence for the log if a pull from `offset` has led back, which no sane server does (requirement B11).

    first_offset: of the first message that came; None without any.
    """
    if next_offset >= offset and (first_offset is None or first_offset >= offset):
        return None
    return f"a pull from offset {offset} led back: next offset {next_offset}, first message's offset {first_offset}"
