"""What a history is judged by: the scene that it is of names its laws."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from enum import StrEnum

from proof.history import batches, delay, fifo, lite, liveness, offsets, owners, push, redrive, spark, transactions
from tests.support.checker import LAWS, Final, History, Law, Seen, Violation, check

Judge = Callable[[History, Final], Iterable[Violation]]


class Scene(StrEnum):
    """What the clients of a history do."""

    PLAIN = "plain"
    FIFO = "fifo"
    DELAY = "delay"
    TRANSACTIONS = "transactions"
    REDRIVE = "redrive"
    QUEUES = "queues"
    LITE = "lite"
    SPARK = "spark"


def judge(scene: Scene, history: History, final: Final) -> list[Violation]:
    """Every broken promise."""
    found = list(_JUDGES[scene](history, final))
    for law in (liveness.goes_on, liveness.all_consumed, liveness.programs_live_on, liveness.soon_delivered):
        found += law(history, final)
    return list(dict.fromkeys(found))


def _plain(history: History, final: Final) -> Iterable[Violation]:
    return check(push.as_holds(history), final)


def _fifo(history: History, final: Final) -> Iterable[Violation]:
    ordered: list[Law] = [fifo.stored_as_sent, fifo.in_order, fifo.acks_final]
    yield from check(history, final, [*_laws_without("acks are final"), *ordered])
    yield from fifo.consumed_in_order(history, final)


def _lite(history: History, final: Final) -> Iterable[Violation]:
    """A lite topic is a message group that clients choose."""
    yield from _fifo(history, final)
    yield from lite.only_subscribers(history, final)


def _delay(history: History, final: Final) -> Iterable[Violation]:
    return [*check(history, final), *delay.not_early(history, Seen(history), final)]


def _transactions(history: History, final: Final) -> Iterable[Violation]:
    return [*check(transactions.as_sends(history), final), *transactions.one_decision(history, final)]


def _redrive(history: History, final: Final) -> Iterable[Violation]:
    seen = Seen(history)
    laws = (
        redrive.back_only_by_redrive,
        redrive.once_for_each_redrive,
        redrive.dead_for_a_reason,
        redrive.answers_are_right,
    )
    lasting = _laws_without("attempts", "dead letters", "stale handles", "one hold")
    return [*check(history, final, lasting), *(each for law in laws for each in law(history, seen, final))]


def _queues(history: History, final: Final) -> Iterable[Violation]:
    """Groups of whole queues have no holds; what is stored is judged as elsewhere."""
    yield from check(history, dataclasses.replace(final, states=[], lag=[]), [LAWS["no loss"], LAWS["no invention"]])
    for law in (
        offsets.nothing_left_out,
        offsets.at_their_places,
        offsets.never_back,
        batches.once_in_the_sink,
        batches.progress_follows,
        owners.batches_at_their_places,
        owners.progress_waits,
        owners.nothing_skipped,
        owners.all_taken_over,
    ):
        yield from law(history, final)


def _spark(history: History, final: Final) -> Iterable[Violation]:
    """A Spark query reads beside ordinary consumers. It acks by itself, so only its sink says what it got."""
    yield from check(history, spark.of_others(final), _laws_without("conservation"))
    yield from check(history, final, [LAWS["conservation"]])
    for law in (spark.each_once, spark.same_again, spark.in_order, spark.lives_on):
        yield from law(history, final)


def _laws_without(*names: str) -> list[Law]:
    return [law for name, law in LAWS.items() if name not in names]


_JUDGES: dict[Scene, Judge] = {
    Scene.PLAIN: _plain,
    Scene.FIFO: _fifo,
    Scene.DELAY: _delay,
    Scene.TRANSACTIONS: _transactions,
    Scene.REDRIVE: _redrive,
    Scene.QUEUES: _queues,
    Scene.LITE: _lite,
    Scene.SPARK: _spark,
}
