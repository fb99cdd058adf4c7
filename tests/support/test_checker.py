"""The judge itself: a history in order passes, and every way to break a promise is found, by its own name."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.checker import (
    Ack,
    Call,
    ChangeInvisible,
    Delivered,
    Final,
    History,
    Lag,
    Outcome,
    Receive,
    Send,
    StateRow,
    Stored,
    check,
)

OK, REFUSED, UNKNOWN = Outcome.OK, Outcome.REFUSED, Outcome.UNKNOWN
GROUP = "g"
HELD_MS = 1_000.0


@dataclasses.dataclass
class Story:
    """One group and a few messages, told with calls that take 2 ms each; every verb says when it began."""

    history: History = dataclasses.field(default_factory=History)
    states: dict[str, tuple[str, int | None]] = dataclasses.field(default_factory=dict)
    stored: list[Stored] = dataclasses.field(default_factory=list)
    max_attempts: int = 3

    def sent(self, message_id: str, at_ms: float = 0, outcome: Outcome = OK, content: str = "content") -> None:
        self._add(Send(outcome, at_ms, at_ms + 2, message_id, content))
        if outcome is OK and message_id not in self.states:
            self.stored.append(Stored(message_id, content))
            self.states[message_id] = ("READY", None)

    def received(
        self, message_id: str, at_ms: float, attempt: int = 1, handle: str = "", content: str = "content"
    ) -> None:
        delivered = Delivered(message_id, content, attempt, handle or f"h{attempt}")
        self._add(Receive(OK, at_ms, at_ms + 2, GROUP, HELD_MS, (delivered,)))

    def lost_answer(self, at_ms: float) -> None:
        self._add(Receive(UNKNOWN, at_ms, at_ms + 2, GROUP, HELD_MS))

    def acked(self, message_id: str, at_ms: float, handle: str = "h1", outcome: Outcome = OK) -> None:
        self._add(Ack(outcome, at_ms, at_ms + 2, GROUP, message_id, handle))
        if outcome is OK:
            self.states[message_id] = ("COMMIT", None)

    def changed(
        self,
        message_id: str,
        at_ms: float,
        duration_ms: float,
        handle: str = "h1",
        new: str = "",
        outcome: Outcome = OK,
    ) -> None:
        self._add(ChangeInvisible(outcome, at_ms, at_ms + 2, GROUP, message_id, handle, duration_ms, new))

    def final(self) -> Final:
        count = Counter(state for state, _ in self.states.values())
        gauges = (count["READY"], count["INFLIGHT"], count["WAITING_RETRY"], count["DLQ"])
        states = [StateRow(GROUP, message_id, *state) for message_id, state in self.states.items()]
        return Final(self.stored, states, [Lag(GROUP, *gauges, len(self.stored))], self.max_attempts)

    def broken(self, final: Final | None = None) -> set[str]:
        return {violation.invariant for violation in check(self.history, final or self.final())}

    def _add(self, call: Call) -> None:
        self.history.add(call)


def consumed(message_id: str = "m") -> Story:
    """Sent, received, acked."""
    story = Story()
    story.sent(message_id)
    story.received(message_id, 10)
    story.acked(message_id, 20)
    return story


def redelivered() -> Story:
    """The first hold ran out, the second was acked; the first one's ack came too late."""
    story = Story()
    story.sent("m")
    story.received("m", 10)
    story.received("m", 1_020, attempt=2)
    story.acked("m", 1_030, "h1", REFUSED)
    story.acked("m", 1_040, "h2")
    return story


def renewed() -> Story:
    """The hold was lengthened, its new handle acked after the first one's time."""
    story = Story()
    story.sent("m")
    story.received("m", 10)
    story.changed("m", 500, HELD_MS, "h1", "h1+")
    story.acked("m", 600, "h1", REFUSED)
    story.acked("m", 1_400, "h1+")
    return story


def unsure() -> Story:
    """Every answer got lost once: what is unknown excuses."""
    story = Story()
    story.sent("m", 0, UNKNOWN)
    story.sent("m", 10)
    story.lost_answer(20)
    story.received("m", 1_030, attempt=2)
    story.acked("m", 1_040, "h2", UNKNOWN)
    story.received("m", 2_050, attempt=3)
    story.acked("m", 2_060, "h3")
    story.acked("m", 2_070, "h3")
    return story


def died() -> Story:
    """Out of attempts."""
    story = Story()
    story.sent("m")
    for attempt in (1, 2, 3):
        story.received("m", attempt * 1_010, attempt)
    story.states["m"] = ("DLQ", 3)
    return story


@pytest.mark.parametrize("story", [consumed, redelivered, renewed, unsure, died])
def test_what_keeps_the_promises_passes(story: Callable[[], Story]) -> None:
    told = story()
    assert check(told.history, told.final()) == []


def test_a_sent_message_is_gone() -> None:
    story = consumed()
    story.sent("lost")
    story.stored.pop()
    del story.states["lost"]
    assert story.broken() == {"I1"}


def test_a_stored_message_has_another_content() -> None:
    story = consumed()
    story.stored[0] = Stored("m", "other")
    assert story.broken() == {"I1"}


def test_a_message_has_no_state_in_a_group() -> None:
    story = consumed()
    del story.states["m"]
    assert "I1" in story.broken()


def test_a_message_is_committed_though_nobody_acked_it() -> None:
    story = Story()
    story.sent("m")
    story.received("m", 10)
    story.states["m"] = ("COMMIT", None)
    assert story.broken() == {"I1"}


def test_a_message_is_left_over() -> None:
    story = Story()
    story.sent("m")
    assert story.broken() == {"I1"}


def test_a_refused_ack_commits_nothing() -> None:
    story = Story()
    story.sent("m")
    story.received("m", 10)
    story.acked("m", 20, "h1", REFUSED)
    story.states["m"] = ("COMMIT", None)
    assert story.broken() == {"I1"}


def test_a_repeated_send_is_stored_twice() -> None:
    story = consumed()
    story.stored *= 2
    assert "I11" in story.broken()


def test_a_message_nobody_sent_is_delivered() -> None:
    story = consumed()
    story.received("ghost", 50)
    assert story.broken() == {"I2"}


def test_a_message_is_delivered_before_it_was_sent() -> None:
    story = Story()
    story.received("m", 10)
    story.sent("m", 100)
    story.acked("m", 110)
    assert story.broken() == {"I2"}


def test_a_refused_message_is_delivered() -> None:
    story = Story()
    story.sent("m", 0, REFUSED)
    story.received("m", 10)
    assert story.broken() == {"I2"}


def test_a_delivery_has_another_content() -> None:
    story = Story()
    story.sent("m")
    story.received("m", 10, content="other")
    story.acked("m", 20)
    assert story.broken() == {"I2"}


def test_a_message_nobody_sent_is_stored() -> None:
    story = consumed()
    story.stored.append(Stored("ghost", "content"))
    story.states["ghost"] = ("COMMIT", None)
    assert story.broken() == {"I1", "I2"}


def test_two_hold_one_message() -> None:
    story = Story()
    story.sent("m")
    story.received("m", 10)
    story.received("m", 900, attempt=2)
    story.acked("m", 910, "h2")
    assert story.broken() == {"I3"}


def test_two_hold_one_message_while_its_time_was_lengthened() -> None:
    story = Story()
    story.sent("m")
    story.received("m", 10)
    story.changed("m", 500, HELD_MS, "h1", "h1+")
    story.received("m", 1_100, attempt=2)
    story.acked("m", 1_110, "h2")
    assert story.broken() == {"I3"}


@pytest.mark.parametrize("first", [OK, UNKNOWN])
def test_a_change_that_is_repeated_prolongs_nothing(first: Outcome) -> None:
    story = Story()
    story.sent("m")
    story.received("m", 10)
    story.changed("m", 100, HELD_MS, "h1", "h1+" if first is OK else "", first)
    story.changed("m", 900, HELD_MS, "h1", "h1+")
    story.received("m", 1_110, attempt=2)
    story.acked("m", 1_120, "h2")
    assert story.broken() == set()


@pytest.mark.parametrize("outcome", [OK, UNKNOWN])
def test_a_shortened_hold_may_end_early(outcome: Outcome) -> None:
    story = Story()
    story.sent("m")
    story.received("m", 10)
    story.changed("m", 100, 50, "h1", "h1+" if outcome is OK else "", outcome)
    story.received("m", 200, attempt=2)
    story.acked("m", 210, "h2")
    assert story.broken() == set()


def test_a_refused_change_shortens_nothing() -> None:
    story = Story()
    story.sent("m")
    story.received("m", 10)
    story.changed("m", 100, 50, outcome=REFUSED)
    story.received("m", 200, attempt=2)
    story.acked("m", 210, "h2")
    assert story.broken() == {"I3"}


def test_a_stale_handle_acks() -> None:
    story = Story()
    story.sent("m")
    story.received("m", 10)
    story.received("m", 1_020, attempt=2)
    story.acked("m", 1_030, "h1")
    assert story.broken() == {"I4"}


def test_a_stale_handle_changes_the_hold() -> None:
    story = Story()
    story.sent("m")
    story.received("m", 10)
    story.received("m", 1_020, attempt=2)
    story.changed("m", 1_030, HELD_MS, "h1", "h1+")
    story.acked("m", 1_040, "h2")
    # Who may lengthen an old hold makes it a second one.
    assert story.broken() == {"I3", "I4"}


def test_a_replaced_handle_acks() -> None:
    story = Story()
    story.sent("m")
    story.received("m", 10)
    story.changed("m", 500, HELD_MS, "h1", "h1+")
    story.acked("m", 600, "h1")
    assert story.broken() == {"I4"}


def test_a_foreign_handle_acks() -> None:
    story = Story()
    story.sent("m")
    story.received("m", 10)
    story.acked("m", 20, "made up")
    assert story.broken() == {"I4"}


def test_an_acked_message_comes_back() -> None:
    story = consumed()
    story.received("m", 1_020, attempt=2)
    assert story.broken() == {"I5"}


def test_an_acked_message_is_not_committed() -> None:
    story = consumed()
    story.states["m"] = ("DLQ", 3)
    assert story.broken() == {"I5"}


def test_an_attempt_is_counted_twice() -> None:
    story = redelivered()
    story.history.calls = [each for each in story.history.calls if not isinstance(each, Ack)]
    story.received("m", 2_100, attempt=2, handle="h2 again")
    story.acked("m", 2_110, "h2 again")
    assert story.broken() == {"I7"}


def test_attempts_go_back() -> None:
    story = Story()
    story.sent("m")
    story.received("m", 10, attempt=2)
    story.received("m", 1_020, attempt=1)
    story.acked("m", 1_030, "h1")
    assert "I7" in story.broken()


@pytest.mark.parametrize("attempt", [0, 2])
def test_the_first_attempt_is_not_number_one(attempt: int) -> None:
    story = Story()
    story.sent("m")
    story.received("m", 10, attempt)
    story.acked("m", 20, f"h{attempt}")
    assert story.broken() == {"I7"}


def test_an_attempt_beyond_the_last() -> None:
    story = Story(max_attempts=1)
    story.sent("m")
    story.received("m", 10)
    story.received("m", 1_020, attempt=2)
    story.acked("m", 1_030, "h2")
    assert story.broken() == {"I8"}


def test_a_dead_letter_with_attempts_left() -> None:
    story = Story()
    story.sent("m")
    story.received("m", 10)
    story.states["m"] = ("DLQ", 1)
    assert story.broken() == {"I8"}


@pytest.mark.parametrize("gauge", ["ready", "inflight", "waiting_retry", "dead_letters", "stored"])
def test_a_gauge_is_wrong(gauge: str) -> None:
    story = consumed()
    final = story.final()
    final.lag = [lag._replace(**{gauge: getattr(lag, gauge) + 1}) for lag in final.lag]
    assert story.broken(final) == {"I13"}


def test_a_history_can_be_kept(tmp_path: Path) -> None:
    story = redelivered()
    story.history.write(tmp_path / "history.jsonl")
    lines = (tmp_path / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["call"] for line in lines] == ["Send", "Receive", "Receive", "Ack", "Ack"]
