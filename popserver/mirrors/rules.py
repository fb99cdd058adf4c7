"""What a mirror reports, its lease, and which reports are refused. Pure.

A mirror is a process outside of the server that hands messages over from one server to another. Its record says where
it continues, and its lease lets one process at a time hand over. A lease has an end, so that another process can take
it if the first one is gone.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from popserver.model.errors import AlreadyExists, BadRequest, LeaseTaken, PopError
from popserver.model.names import CONTROL, Resource
from popserver.model.retry import MINUTE_MS, SECOND_MS
from popserver.model.states import MirrorState
from popserver.model.times import utc

MIRRORS_MAX: Final = 1_000
LEASE_MS_MIN: Final = 5 * SECOND_MS
LEASE_MS_MAX: Final = 300 * SECOND_MS
# A lease that ends later is from a clock that was set back since. Clocks of servers differ by less than a minute.
LEASE_AHEAD_MS_MAX: Final = LEASE_MS_MAX + MINUTE_MS
ENDPOINTS_LENGTH_MAX: Final = 1_000
HOST_LENGTH_MAX: Final = 255
SENTENCE_LENGTH_MAX: Final = 2_000
POSITION_BYTES_MAX: Final = 16 * 1024
UNKNOWN: Final = -1  # the lag of a mirror that does not know it
ENDED: Final = frozenset({MirrorState.STOPPED, MirrorState.DONE})
COUNTS: Final = ("handed", "repeated", "dead_letters", "scheduled", "bytes")

_WORD = re.compile(r"[A-Za-z0-9_-]{1,64}")
# Those of RocketMQ, whose groups may have longer names than PopMQ's.
_NAME = re.compile(r"[%|a-zA-Z0-9_-]{1,255}")
_NAMESPACE = re.compile(r"[%|a-zA-Z0-9_.-]{0,127}")


class MirrorFacts(NamedTuple):
    """What a mirror reports. `group`: empty for the whole topic. Counts: since the mirror was recorded."""

    mirror_id: str
    source: str
    target: str
    namespace: str
    topic: str
    consumer_group: str
    owner: str
    host: str
    state: MirrorState
    sentence: str = ""
    position: str = ""
    handed: int = 0
    repeated: int = 0
    dead_letters: int = 0
    scheduled: int = 0
    bytes: int = 0
    lag: int = UNKNOWN


class MirrorRow(NamedTuple):
    """The record of a mirror."""

    mirror_id: str
    source: str
    target: str
    namespace: str
    topic: str
    consumer_group: str
    owner: str
    host: str
    lease_until_ms: int
    state: str
    sentence: str
    position: str
    handed: int
    repeated: int
    dead_letters: int
    scheduled: int
    bytes: int
    lag: int
    started_at_ms: int
    updated_at_ms: int

    def has_lease(self, now_ms: int) -> bool:
        """Whether its owner has the lease now."""
        return now_ms < self.lease_until_ms <= now_ms + LEASE_AHEAD_MS_MAX

    def is_lost(self, now_ms: int) -> bool:
        """Whether its process is gone without a last report."""
        return self.state not in ENDED and not self.has_lease(now_ms)

    @property
    def subject(self) -> str:
        """What it hands over, for people."""
        topic = Resource(self.namespace, self.topic)
        return f"{topic} for {self.consumer_group}" if self.consumer_group else str(topic)


def check_mirror_id(mirror_id: str) -> None:
    """Raise unless the id is one word for a log, a URL and a shell."""
    _check_word("mirror_id", mirror_id)


def check(facts: MirrorFacts, lease_ms: int) -> None:
    """Raise `BadRequest` for a value that is not allowed. The sentence has its name, its value and the limit."""
    check_mirror_id(facts.mirror_id)
    _check_word("owner", facts.owner)
    for field, endpoints in (("source", facts.source), ("target", facts.target)):
        _check_text(field, endpoints, ENDPOINTS_LENGTH_MAX, at_least=1)
        if "@" in endpoints:
            raise BadRequest(f"{field} has an @, which ends a secret in an address; give the endpoints without it")
    _check_name("topic", facts.topic)
    if facts.consumer_group:
        _check_name("group", facts.consumer_group)
    if not _NAMESPACE.fullmatch(facts.namespace):
        raise BadRequest(
            f"namespace {facts.namespace[:64]!r} is not allowed; use at most 127 characters out of"
            " % | A-Z a-z 0-9 _ . -"
        )
    _check_text("host", facts.host, HOST_LENGTH_MAX, at_least=1)
    _check_text("sentence", facts.sentence, SENTENCE_LENGTH_MAX)
    if (size := len(facts.position.encode())) > POSITION_BYTES_MAX:
        raise BadRequest(f"position has {size:,} bytes, at most {POSITION_BYTES_MAX:,} are allowed; make it shorter")
    if "\0" in facts.position:
        raise BadRequest("position has the character U+0000, which databases cannot store; leave it out")
    for field in COUNTS:
        _check_count(field, getattr(facts, field), 0)
    _check_count("lag", facts.lag, UNKNOWN)
    if not LEASE_MS_MIN <= lease_ms <= LEASE_MS_MAX:
        raise BadRequest(
            f"lease is {lease_ms / SECOND_MS:g} s; give {LEASE_MS_MIN // SECOND_MS} to {LEASE_MS_MAX // SECOND_MS} s"
        )


def refusal(row: MirrorRow | None, facts: MirrorFacts, now_ms: int, *, claim: bool) -> PopError:
    """Why a report was refused. `row`: the record now."""
    if row is None:
        return BadRequest(
            f"{MIRRORS_MAX:,} mirrors are recorded, and no more are allowed; forget one that has ended:"
            " popmq mirrors forget ID"
        )
    asked = (facts.namespace, facts.topic, facts.consumer_group)
    if (row.namespace, row.topic, row.consumer_group) != asked:
        other = row._replace(namespace=facts.namespace, topic=facts.topic, consumer_group=facts.consumer_group)
        return AlreadyExists(
            f"mirror '{row.mirror_id}' hands over {row.subject}, and its position is of no use for {other.subject};"
            " give this mirror another name, or forget the other one"
        )
    if claim:
        return _runs(row, now_ms, "runs already", "")
    since = f"(since {utc(row.started_at_ms)})"
    return LeaseTaken(
        f"mirror '{row.mirror_id}' was taken over by {row.host} {since}, because this process had not reported for"
        " longer than its lease; stop this one"
    )


def refusal_to_forget(row: MirrorRow, now_ms: int) -> PopError:
    """Why a record is not removed: its lease lasts."""
    return _runs(row, now_ms, "runs", ", then forget it")


def _runs(row: MirrorRow, now_ms: int, how: str, then: str) -> PopError:
    left_s = -(-(row.lease_until_ms - now_ms) // SECOND_MS)
    return LeaseTaken(
        f"mirror '{row.mirror_id}' {how} on {row.host} (since {utc(row.started_at_ms)}); stop it there, or wait"
        f" {max(1, left_s)} s if it has ended{then}"
    )


def _check_word(field: str, given: str) -> None:
    if not _WORD.fullmatch(given):
        raise BadRequest(f"{field} {given[:64]!r} is not one of 1 to 64 characters out of A-Z a-z 0-9 _ -")


def _check_name(field: str, given: str) -> None:
    if not _NAME.fullmatch(given):
        raise BadRequest(f"{field} {given[:64]!r} is not a name of 1 to 255 characters out of % | A-Z a-z 0-9 _ -")


def _check_text(field: str, given: str, length_max: int, *, at_least: int = 0) -> None:
    if len(given) > length_max:
        raise BadRequest(f"{field} has {len(given):,} characters, at most {length_max:,} are allowed")
    if len(given.strip()) < at_least:
        raise BadRequest(f"{field} is blank; it must say at least something")
    if CONTROL.search(given):
        raise BadRequest(f"{field} {given[:64]!r} has a control character; leave it out")


def _check_count(field: str, given: int, least: int) -> None:
    if given < least:
        raise BadRequest(f"{field} is {given}; it must be at least {least}")
