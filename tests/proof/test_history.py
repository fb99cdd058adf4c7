"""The laws of a history: what is in order passes, and each way to break one is found, by its own invariant."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from proof.history.__main__ import main
from proof.history.events import (
    Accident,
    CommitOffset,
    Consume,
    DelayedSend,
    EndTransaction,
    Forward,
    Gone,
    HalfSend,
    LiteReceive,
    LiteSync,
    OrderedSend,
    ProgramEnded,
    Pull,
    Pulled,
    PushReceive,
    QueueBatch,
    Quiet,
    ReadOffset,
    Redrive,
    SignOfLife,
    SinkRow,
    SparkBatch,
    SparkEnded,
    SunkBatch,
    TakenOver,
)
from proof.history.lines import read_history, write_history
from proof.history.scenes import Scene, judge
from proof.history.spark import GROUP as SPARK
from tests.support.checker import Ack, Call, Delivered, Final, History, Lag, Outcome, Receive, Send, StateRow, Stored

OK, REFUSED, UNKNOWN = Outcome.OK, Outcome.REFUSED, Outcome.UNKNOWN
GROUP = "g"
HELD_MS = 1_000.0
LIVED_ON_MS = 100_000.0

Tale = tuple[Scene, list[Call], Final]


def receive(at_ms: float, *messages: str, attempt: int = 1) -> Receive:
    deliveries = tuple(Delivered(each, "content", attempt, f"{each}/{attempt}/{at_ms}") for each in messages)
    return Receive(OK, at_ms, at_ms + 2, GROUP, HELD_MS, deliveries)


def ack(message_id: str, at_ms: float, received_ms: float, attempt: int = 1, outcome: Outcome = OK) -> Ack:
    return Ack(outcome, at_ms, at_ms + 2, GROUP, message_id, f"{message_id}/{attempt}/{float(received_ms)}")


def ended(*messages: str, state: str = "COMMIT", message_group: str = "", drained: bool = True) -> Final:
    """All of them stored, in this order, and in one state."""
    stored = [Stored(each, "content", message_group, 0, offset) for offset, each in enumerate(messages)]
    states = [StateRow(GROUP, each, state, 1) for each in messages]
    dead = len(messages) if state == "DLQ" else 0
    return Final(stored, states, [Lag(GROUP, 0, 0, 0, dead, len(messages))], max_attempts=3, drained=drained)


def in_order() -> Tale:
    """Two messages of a message group, one after the other; the first one's ack gets no answer."""
    calls: list[Call] = [
        OrderedSend(OK, 0, 2, "a", "content", "run"),
        OrderedSend(OK, 3, 5, "b", "content", "run"),
        receive(10.0, "a"),
        ack("a", 20, 10, outcome=UNKNOWN),
        receive(1_030.0, "b"),
        ack("b", 1_040, 1_030),
    ]
    return Scene.FIFO, calls, ended("a", "b", message_group="run")


def a_run_again() -> Tale:
    """The second one's ack was provisional: the run came again as a whole."""
    calls: list[Call] = [
        OrderedSend(OK, 0, 2, "a", "content", "run"),
        OrderedSend(OK, 3, 5, "b", "content", "run"),
        receive(10.0, "a", "b"),
        ack("b", 20, 10),
        receive(1_020.0, "a", "b", attempt=2),
        ack("a", 1_030, 1_020, 2),
        ack("b", 1_040, 1_020, 2),
    ]
    return Scene.FIFO, calls, ended("a", "b", message_group="run")


def a_run_again_in_parts() -> Tale:
    """The same in two answers: the second one comes when the first one is done, and its early ack counts no more."""
    calls: list[Call] = [
        OrderedSend(OK, 0, 2, "a", "content", "run"),
        OrderedSend(OK, 3, 5, "b", "content", "run"),
        receive(10.0, "a", "b"),
        ack("b", 20, 10),
        receive(1_020.0, "a", attempt=2),
        ack("a", 1_030, 1_020, 2),
        receive(1_040.0, "b", attempt=2),
        ack("b", 1_050, 1_040, 2),
    ]
    return Scene.FIFO, calls, ended("a", "b", message_group="run")


def delayed() -> Tale:
    calls: list[Call] = [DelayedSend(OK, 0, 2, "a", "content", 500), receive(499.0, "a"), ack("a", 510, 499)]
    return Scene.DELAY, calls, ended("a")


def decided() -> Tale:
    """One committed, one rolled back, one that nobody decided."""
    calls: list[Call] = [
        *(HalfSend(OK, 0, 2, each, "content", f"t-{each}") for each in "abc"),
        EndTransaction(UNKNOWN, 5, 6, "a", commits=True),
        EndTransaction(OK, 7, 8, "a", commits=True),
        EndTransaction(OK, 7, 8, "b", commits=False),
        receive(10.0, "a"),
        ack("a", 20, 10),
    ]
    return Scene.TRANSACTIONS, calls, ended("a")


def redriven() -> Tale:
    """Given up, sent back by a plan whose first answer was lost, acked."""
    calls: list[Call] = [
        Send(OK, 0, 2, "a", "content"),
        receive(10.0, "a"),
        Forward(OK, 20, 22, GROUP, "a", "a/1/10.0"),
        Redrive(UNKNOWN, 30, 32, GROUP, "p", ("a",)),
        Redrive(OK, 33, 35, GROUP, "p", ("a",), ("a",)),
        receive(40.0, "a"),
        ack("a", 50, 40),
    ]
    return Scene.REDRIVE, calls, ended("a")


def pulled() -> Tale:
    calls: list[Call] = [
        Send(OK, 0, 2, "a", "content"),
        Send(OK, 0, 2, "b", "content"),
        ReadOffset(OK, 3, 4, GROUP, 0),
        Pull(OK, 5, 6, GROUP, 0, 0, 2, (Pulled(0, "a", "content"), Pulled(1, "b", "content"))),
        CommitOffset(OK, 7, 8, GROUP, 0, 2),
        CommitOffset(UNKNOWN, 9, 10, GROUP, 0, 3),
        ReadOffset(OK, 11, 12, GROUP, 0, 2),
    ]
    return Scene.QUEUES, calls, ended("a", "b")


def lived_on() -> Tale:
    """A server was killed; calls went on, for longer than the law waits."""
    calls: list[Call] = [
        Send(OK, 0, 2, "a", "content"),
        Accident(OK, 5, 900, "kill_server"),
        receive(1_000.0, "a"),
        ack("a", 1_010, 1_000),
        Receive(UNKNOWN, LIVED_ON_MS, LIVED_ON_MS + 2, GROUP, HELD_MS),
    ]
    return Scene.PLAIN, calls, ended("a")


def soon() -> Tale:
    """The first try was late, the second one was not."""
    calls: list[Call] = [
        Quiet(OK, 0, 0),
        Send(OK, 1, 2, "a", "content"),
        dataclasses.replace(receive(0.0, "a"), completed_ms=3_000),
        ack("a", 3_010, 0),
        Quiet(OK, 4_000, 4_000),
        Send(OK, 4_001, 4_002, "b", "content"),
        receive(5_990.0, "b"),
        ack("b", 6_000, 5_990),
    ]
    return Scene.PLAIN, calls, ended("a", "b")


def repeated() -> Tale:
    """While nothing fails a producer repeats a send that had no answer. Its message came before."""
    calls: list[Call] = [
        Send(UNKNOWN, 1, 2, "a", "content"),
        receive(3.0, "a"),
        ack("a", 6, 3),
        Quiet(OK, 10_000, 10_000),
        Send(OK, 10_001, 10_002, "a", "content"),
        dataclasses.replace(receive(10_003.0), completed_ms=19_000),
    ]
    return Scene.PLAIN, calls, ended("a")


def pushed() -> Tale:
    """A client leaves while its receive waits, which is answered all the same; it comes back and receives again."""
    client = "client"

    def push(at_ms: float, until_ms: float, attempt: int) -> PushReceive:
        got = Delivered("a", "content", attempt, f"a/{attempt}/{at_ms}")
        return PushReceive(OK, at_ms, until_ms, GROUP, 0.0, (got,), client)

    calls: list[Call] = [
        SignOfLife(OK, 0, 1, client),
        Gone(OK, 4, 5, client),
        Send(OK, 6, 7, "a", "content"),
        push(2.0, 8, 1),
        SignOfLife(OK, 10, 11, client),
        push(12.0, 13, 2),
        ack("a", 14, 12, attempt=2),
    ]
    return Scene.PLAIN, calls, ended("a")


def sunk() -> Tale:
    """A query beside a consumer. Its driver was killed in batch 0, which it repeated."""
    first, second = SinkRow(0, 0, "a", "content"), SinkRow(0, 1, "b", "content")
    calls: list[Call] = [
        Send(OK, 0, 2, "a", "content"),
        Send(OK, 0, 2, "b", "content"),
        receive(10.0, "a", "b"),
        ack("a", 20, 10),
        ack("b", 20, 10),
        SparkBatch(UNKNOWN, 5, 8, "queue", "q", 0, (first,)),
        SparkBatch(OK, 30, 32, "queue", "q", 0, (first,)),
        SparkBatch(OK, 33, 35, "queue", "q", 1, (second,)),
        SunkBatch(OK, 50, 52, "queue", "q", 0, (first,)),
        SunkBatch(OK, 50, 52, "queue", "q", 1, (second,)),
    ]
    final = ended("a", "b")
    final.states += [StateRow(SPARK, each, "COMMIT", None) for each in "ab"]
    final.lag += [Lag(SPARK, 0, 0, 0, 0, 2)]
    return Scene.SPARK, calls, final


def listened() -> Tale:
    """A listener is killed in the first message, which comes again to another one."""
    calls: list[Call] = [
        OrderedSend(OK, 0, 2, "a", "content", "run"),
        OrderedSend(OK, 3, 5, "b", "content", "run"),
        receive(10.0, "a", "b"),
        Consume(UNKNOWN, 13, 500, GROUP, "a", "one"),
        receive(1_020.0, "a", "b", attempt=2),
        Consume(OK, 1_023, 1_024, GROUP, "a", "two"),
        Consume(OK, 1_025, 1_026, GROUP, "b", "two"),
        ack("a", 1_030, 1_020, 2),
        ack("b", 1_040, 1_020, 2),
    ]
    return Scene.FIFO, calls, ended("a", "b", message_group="run")


def subscribed() -> Tale:
    """A client unsubscribes, and gets a message by a receive that began before; another one subscribes."""
    first, second = (
        LiteReceive(OK, at, at + 2, GROUP, HELD_MS, receive(at, name).deliveries, client)
        for at, name, client in ((10.0, "a", "one"), (40.0, "b", "two"))
    )
    calls: list[Call] = [
        OrderedSend(OK, 0, 2, "a", "content", "lite"),
        OrderedSend(OK, 3, 5, "b", "content", "lite"),
        LiteSync(OK, 6, 7, GROUP, "one", ("lite", "other"), adds=True),
        LiteSync(OK, 9, 11, GROUP, "one", ("lite",), adds=False),
        first,
        ack("a", 20, 10),
        LiteSync(UNKNOWN, 30, 35, GROUP, "two", ("lite",), adds=True),
        second,
        ack("b", 50, 40),
    ]
    return Scene.LITE, calls, ended("a", "b", message_group="lite")


def taken_over() -> Tale:
    """A client takes a lite topic from another one, which gets a message by a receive that began before."""
    first, second = (
        LiteReceive(OK, at, at + 2, GROUP, HELD_MS, receive(at, name).deliveries, client)
        for at, name, client in ((10.0, "a", "one"), (40.0, "b", "two"))
    )
    calls: list[Call] = [
        OrderedSend(OK, 0, 2, "a", "content", "lite"),
        OrderedSend(OK, 3, 5, "b", "content", "lite"),
        LiteSync(OK, 6, 7, GROUP, "one", ("lite", "other"), adds=True, takes=True),
        LiteSync(OK, 9, 11, GROUP, "two", ("lite",), adds=True, takes=True),
        first,
        ack("a", 20, 10),
        second,
        ack("b", 50, 40),
    ]
    return Scene.LITE, calls, ended("a", "b", message_group="lite")


def shared() -> Tale:
    """A member is killed with a message, which comes again to another one; progress waits for it."""
    calls: list[Call] = [
        Send(OK, 0, 2, "a", "content"),
        Send(OK, 0, 2, "b", "content"),
        QueueBatch(UNKNOWN, 5, 8, GROUP, 0, "one", (Pulled(0, "a", "content"),)),
        ReadOffset(OK, 9, 10, GROUP, 0),
        QueueBatch(OK, 20, 22, GROUP, 0, "two", (Pulled(0, "a", "content"), Pulled(1, "b", "content"))),
        CommitOffset(UNKNOWN, 23, 24, GROUP, 0, 2),
        TakenOver(OK, 25, 30, GROUP, ()),
    ]
    return Scene.QUEUES, calls, ended("a", "b")


TALES = (
    in_order, a_run_again, a_run_again_in_parts, delayed, decided, redriven, pulled, lived_on, soon, repeated, pushed,
    sunk, listened, subscribed, taken_over, shared,
)  # fmt: skip


@pytest.mark.parametrize("tale", TALES)
def test_what_keeps_the_promises_passes(tale: Callable[[], Tale], tmp_path: Path) -> None:
    scene, calls, final = tale()
    assert judge(scene, History(calls), final) == []
    write_history(tmp_path / "history.jsonl", scene, History(calls), final)
    assert read_history(tmp_path / "history.jsonl") == (scene, History(calls), final)
    assert main([str(tmp_path / "history.jsonl")]) == 0


def _moved(call: Call, to_ms: float) -> Call:
    return dataclasses.replace(call, invoked_ms=to_ms, completed_ms=to_ms + 2)


def overtaken(calls: list[Call], _final: Final) -> None:
    calls[4] = receive(15.0, "b")


def stored_in_another_order(_calls: list[Call], final: Final) -> None:
    final.stored.reverse()


def a_run_out_of_order(calls: list[Call], _final: Final) -> None:
    calls[2] = receive(10.0, "b", "a")


def again_after_a_final_ack(calls: list[Call], _final: Final) -> None:
    calls.append(receive(1_050.0, "b", attempt=3))


def early(calls: list[Call], _final: Final) -> None:
    calls[1] = _moved(calls[1], 490)


def committed_and_gone(_calls: list[Call], final: Final) -> None:
    final.stored.clear()
    final.states.clear()


def seen_before_its_commit(calls: list[Call], _final: Final) -> None:
    calls[6] = receive(1.0, "a")


def rolled_back_and_stored(_calls: list[Call], final: Final) -> None:
    final.stored.append(Stored("b", "content"))


def two_decisions(calls: list[Call], _final: Final) -> None:
    calls.append(EndTransaction(OK, 9, 10, "a", commits=False))


def undecided_and_seen(calls: list[Call], _final: Final) -> None:
    calls.append(receive(30.0, "c"))


def back_by_itself(calls: list[Call], _final: Final) -> None:
    del calls[3:5]


def back_twice(calls: list[Call], _final: Final) -> None:
    calls.insert(6, receive(45.0, "a"))


def back_although_not_sent(calls: list[Call], _final: Final) -> None:
    calls[4] = Redrive(OK, 33, 35, GROUP, "p", ("a",))


def not_sent_for_no_reason(calls: list[Call], _final: Final) -> None:
    calls.insert(3, Redrive(OK, 24, 26, GROUP, "other", ("a",)))


def two_answers_of_one_plan(calls: list[Call], _final: Final) -> None:
    calls.insert(5, Redrive(OK, 36, 38, GROUP, "p", ("a",)))


def sent_and_still_dead(calls: list[Call], final: Final) -> None:
    del calls[5:]
    final.states[0] = StateRow(GROUP, "a", "DLQ", 1)
    final.lag[0] = Lag(GROUP, 0, 0, 0, 1, 1)


def dead_without_a_reason(calls: list[Call], final: Final) -> None:
    del calls[2:]
    final.states[0] = StateRow(GROUP, "a", "DLQ", 1)
    final.lag[0] = Lag(GROUP, 0, 0, 0, 1, 1)


def a_message_left_out(calls: list[Call], _final: Final) -> None:
    calls[3] = Pull(OK, 5, 6, GROUP, 0, 0, 2, (Pulled(1, "b", "content"),))


def another_message_there(calls: list[Call], _final: Final) -> None:
    calls[3] = Pull(OK, 5, 6, GROUP, 0, 0, 1, (Pulled(0, "b", "content"),))


def _with_pulled(calls: list[Call], *messages: Pulled) -> None:
    calls[3] = Pull(OK, 5, 6, GROUP, 0, 0, 2, messages)


def pulled_in_another_order(calls: list[Call], _final: Final) -> None:
    _with_pulled(calls, Pulled(1, "b", "content"), Pulled(0, "a", "content"))


def pulled_twice_by_one(calls: list[Call], _final: Final) -> None:
    _with_pulled(calls, Pulled(0, "a", "content"), Pulled(1, "b", "content"), Pulled(1, "b", "content"))


def pulled_from_before(calls: list[Call], _final: Final) -> None:
    calls[3] = Pull(OK, 5, 6, GROUP, 0, 1, 2, (Pulled(0, "a", "content"), Pulled(1, "b", "content")))


def pulled_from_behind(calls: list[Call], _final: Final) -> None:
    calls[3] = Pull(OK, 5, 6, GROUP, 0, 0, 1, (Pulled(0, "a", "content"), Pulled(1, "b", "content")))


def a_broken_pull_brings_another_message(calls: list[Call], _final: Final) -> None:
    calls.append(Pull(UNKNOWN, 15, 16, GROUP, 0, 0, -1, (Pulled(0, "a", "another"),)))


def stored_with_another_content(calls: list[Call], final: Final) -> None:
    """And pulled so."""
    final.stored[1] = final.stored[1]._replace(digest="another")
    _with_pulled(calls, Pulled(0, "a", "content"), Pulled(1, "b", "another"))


def stored_twice(_calls: list[Call], final: Final) -> None:
    final.stored.append(final.stored[1]._replace(offset=2))


def stored_and_never_sent(calls: list[Call], _final: Final) -> None:
    del calls[1]


def progress_went_back(calls: list[Call], _final: Final) -> None:
    calls[6] = ReadOffset(OK, 11, 12, GROUP, 0, 1)


def progress_from_nowhere(calls: list[Call], _final: Final) -> None:
    calls[6] = ReadOffset(OK, 11, 12, GROUP, 0, 7)


def a_pulled_message_is_lost(_calls: list[Call], final: Final) -> None:
    final.stored.pop()


def _with_rows(call: Call, *messages: str, digest: str = "content") -> Call:
    assert isinstance(call, SparkBatch)
    rows = tuple(SinkRow(0, "ab".find(each), each, digest) for each in messages)
    return dataclasses.replace(call, rows=rows)


def a_batch_never_sunk(calls: list[Call], _final: Final) -> None:
    calls.pop()


def a_batch_sunk_twice(calls: list[Call], _final: Final) -> None:
    calls[8] = _with_rows(calls[8], "a", "a")


def sunk_with_another_content(calls: list[Call], _final: Final) -> None:
    calls[7], calls[9] = (_with_rows(calls[at], "b", digest="another") for at in (7, 9))


def sunk_and_never_stored(calls: list[Call], _final: Final) -> None:
    calls[7], calls[9] = (_with_rows(calls[at], "b", "c") for at in (7, 9))


def another_batch_when_repeated(calls: list[Call], _final: Final) -> None:
    calls[5] = _with_rows(calls[5], "a", "b")


def another_batch_sunk(calls: list[Call], _final: Final) -> None:
    calls[8], calls[9] = _with_rows(calls[8], "a", "b"), _with_rows(calls[9])


def sunk_in_another_order(calls: list[Call], _final: Final) -> None:
    for at in (5, 6, 8):
        calls[at] = _with_rows(calls[at], "b")
    for at in (7, 9):
        calls[at] = _with_rows(calls[at], "a")


def a_query_that_ended(calls: list[Call], _final: Final) -> None:
    calls.append(SparkEnded(REFUSED, 40, 41, "no server"))


def wrong_gauges_of_the_query(_calls: list[Call], final: Final) -> None:
    final.lag[-1] = Lag(SPARK, 1, 0, 0, 0, 2)


def never_again(calls: list[Call], _final: Final) -> None:
    calls[2:4] = [_moved(call, 80_000) for call in calls[2:4]]


def a_program_that_ended(calls: list[Call], _final: Final) -> None:
    calls.append(ProgramEnded(REFUSED, 910, 910, "go", "panic"))


def not_drained(_calls: list[Call], final: Final) -> None:
    final.drained = False


def late_each_time(calls: list[Call], _final: Final) -> None:
    late = dataclasses.replace(receive(4_000.0, "b"), completed_ms=6_010)
    calls[6:] = [late, ack("b", 6_020, 4_000)]


def a_group_that_does_not_get_it(calls: list[Call], _final: Final) -> None:
    calls += [Receive(OK, 0, 7_000, "other", HELD_MS)]


def pushed_to_one_who_stayed(calls: list[Call], _final: Final) -> None:
    del calls[1]


def a_listener_overtakes(calls: list[Call], _final: Final) -> None:
    """Both came in one answer."""
    calls[5], calls[6] = calls[6], calls[5]
    calls[5], calls[6] = _moved(calls[5], 1_023), _moved(calls[6], 1_026)


def a_listener_begins_too_soon(calls: list[Call], _final: Final) -> None:
    calls[6] = Consume(OK, 1_023.5, 1_026, GROUP, "b", "two")


def of_a_lite_topic_that_it_left(calls: list[Call], _final: Final) -> None:
    calls[3] = LiteSync(OK, 8, 9, GROUP, "one", ("lite",), adds=False)


def of_a_lite_topic_that_it_never_wanted(calls: list[Call], _final: Final) -> None:
    del calls[6]


def of_a_lite_topic_of_another(calls: list[Call], _final: Final) -> None:
    calls[6] = LiteSync(OK, 30, 35, GROUP, "two", ("other",), adds=True)


def of_a_lite_topic_that_another_took(calls: list[Call], _final: Final) -> None:
    calls[3] = LiteSync(OK, 8, 9, GROUP, "two", ("lite",), adds=True, takes=True)


def a_lite_topic_overtaken(calls: list[Call], _final: Final) -> None:
    calls[5] = ack("a", 60, 10)


def committed_too_soon(calls: list[Call], _final: Final) -> None:
    calls[5] = CommitOffset(UNKNOWN, 21, 24, GROUP, 0, 2)


def skipped_by_all_members(calls: list[Call], _final: Final) -> None:
    calls[4] = QueueBatch(OK, 20, 22, GROUP, 0, "two", (Pulled(1, "b", "content"),))
    del calls[5]


def a_queue_without_a_member(calls: list[Call], _final: Final) -> None:
    calls[6] = TakenOver(REFUSED, 25, 30, GROUP, (1,))


def a_batch_of_another_message(calls: list[Call], _final: Final) -> None:
    calls[2] = QueueBatch(UNKNOWN, 5, 8, GROUP, 0, "one", (Pulled(0, "b", "content"),))


def a_batch_backwards(calls: list[Call], _final: Final) -> None:
    batch = (Pulled(1, "b", "content"), Pulled(0, "a", "content"))
    calls[4] = QueueBatch(OK, 20, 22, GROUP, 0, "two", batch)


BROKEN: list[tuple[Callable[[], Tale], Callable[[list[Call], Final], None], str]] = [
    (in_order, overtaken, "I6"),
    (in_order, stored_in_another_order, "I6"),
    (a_run_again, a_run_out_of_order, "I6"),
    (a_run_again, again_after_a_final_ack, "I5"),
    (delayed, early, "I10"),
    (decided, committed_and_gone, "I1"),
    (decided, seen_before_its_commit, "I2"),
    (decided, rolled_back_and_stored, "I2"),
    (decided, two_decisions, "I1"),
    (decided, undecided_and_seen, "I2"),
    (redriven, back_by_itself, "I8"),
    (redriven, back_twice, "I8"),
    (redriven, back_although_not_sent, "I8"),
    (redriven, not_sent_for_no_reason, "I8"),
    (redriven, two_answers_of_one_plan, "I8"),
    (redriven, sent_and_still_dead, "I8"),
    (redriven, dead_without_a_reason, "I8"),
    (pulled, a_message_left_out, "I12"),
    (pulled, another_message_there, "I12"),
    (pulled, pulled_in_another_order, "I12"),
    (pulled, pulled_twice_by_one, "I12"),
    (pulled, pulled_from_before, "I12"),
    (pulled, pulled_from_behind, "I12"),
    (pulled, a_broken_pull_brings_another_message, "I12"),
    (pulled, stored_with_another_content, "I1"),
    (pulled, stored_twice, "I11"),
    (pulled, stored_and_never_sent, "I2"),
    (pulled, progress_went_back, "I12"),
    (pulled, progress_from_nowhere, "I12"),
    (pulled, a_pulled_message_is_lost, "I1"),
    (sunk, a_batch_never_sunk, "I1"),
    (sunk, a_pulled_message_is_lost, "I1"),
    (sunk, a_batch_sunk_twice, "I5"),
    (sunk, sunk_with_another_content, "I2"),
    (sunk, sunk_and_never_stored, "I2"),
    (sunk, another_batch_when_repeated, "I12"),
    (sunk, another_batch_sunk, "I12"),
    (sunk, sunk_in_another_order, "I12"),
    (sunk, a_query_that_ended, "I14"),
    (sunk, wrong_gauges_of_the_query, "I13"),
    (pushed, pushed_to_one_who_stayed, "I3"),
    (listened, a_listener_overtakes, "I6"),
    (listened, a_listener_begins_too_soon, "I6"),
    (subscribed, of_a_lite_topic_that_it_left, "I2"),
    (subscribed, of_a_lite_topic_that_it_never_wanted, "I2"),
    (subscribed, of_a_lite_topic_of_another, "I2"),
    (subscribed, a_lite_topic_overtaken, "I6"),
    (taken_over, of_a_lite_topic_that_another_took, "I2"),
    (shared, committed_too_soon, "I12"),
    (shared, skipped_by_all_members, "I1"),
    (shared, a_batch_of_another_message, "I12"),
    (shared, a_batch_backwards, "I12"),
    (shared, a_queue_without_a_member, "I14"),
    (lived_on, never_again, "I14"),
    (lived_on, not_drained, "I14"),
    (lived_on, a_program_that_ended, "I14"),
    (soon, late_each_time, "I14"),
    (soon, a_group_that_does_not_get_it, "I14"),
]


@pytest.mark.parametrize("tale, broken, invariant", BROKEN, ids=lambda each: getattr(each, "__name__", each))
def test_each_broken_promise_is_found(
    tale: Callable[[], Tale], broken: Callable[[list[Call], Final], None], invariant: str, tmp_path: Path
) -> None:
    scene, calls, final = tale()
    broken(calls, final)
    assert invariant in {violation.invariant for violation in judge(scene, History(calls), final)}
    write_history(tmp_path / "history.jsonl", scene, History(calls), final)
    assert main([str(tmp_path / "history.jsonl")]) == 1


def test_a_file_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text('{"call": "Nothing"}\n')
    assert main([str(path)]) == 2
    assert "line 1" in capsys.readouterr().err


def test_a_run_that_ended_early_cannot_be_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scene, calls, _ = pulled()
    write_history(tmp_path / "history.jsonl", scene, History(calls), None)
    assert main([str(tmp_path / "history.jsonl")]) == 2
    assert "cannot be judged" in capsys.readouterr().err
