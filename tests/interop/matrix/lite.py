"""Scenarios of lite topics: a client says by name which of them it gets."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.interop.matrix.stage import Scenarios, Scene, Stage
from tests.interop.official import NoSuchCall, OfficialLitePushConsumer, Received, Refused
from tests.interop.seen import until

LITE = Scenarios()
scenario = LITE.scenario
SHARED = Scene(accepts="LITE", lite="SHARED")
NAMES = ("ada", "ben", "eve")
EACH = 5


@scenario(SHARED)
def lite(stage: Stage) -> None:
    """A listener gets the lite topics that its client subscribes to and no others, in order, also after a failure."""
    consumer = stage.lite(fail=1, poison="ada2")
    consumer.subscribe("ada", "ben")
    _send_to_each(stage)
    again = ["ada0", "ada1", "ada2", "ada2", "ada3", "ada4"]
    assert _by_lite_topic(consumer.hear(2 * EACH + 1)) == {"ada": again, "ben": _sent_to("ben")}
    consumer.unsubscribe("ben")
    _send(stage, ben="for later", ada="now")
    assert [each.body for each in consumer.hear()] == ["now"]
    consumer.subscribe("ben")
    assert [(each.body, each.attempt) for each in consumer.hear()] == [("for later", 1)]
    assert consumer.heard.empty()


@scenario(SHARED)
def lite_simple(stage: Stage) -> None:
    """The same by receiving: what was not acked comes again, before what is behind it."""
    consumer = stage.lite_simple()
    consumer.subscribe("ada", "ben")
    _send_to_each(stage)
    first = stage.first(consumer, stage.servers.shortest_hold_s)
    received = stage.collect(consumer, 2 * EACH)
    assert _by_lite_topic(received) == {"ada": _sent_to("ada"), "ben": _sent_to("ben")}
    assert {each.body: each.attempt for each in received if each.attempt > 1} == {first.body: 2}
    consumer.unsubscribe("ben")
    _send(stage, ben="for later", ada="now")
    assert [each.body for each in stage.collect(consumer, 1)] == ["now"]
    consumer.subscribe("ben")
    assert [(each.body, each.attempt) for each in stage.collect(consumer, 1)] == [("for later", 1)]


@scenario(SHARED)
def lite_suspend(stage: Stage) -> None:
    """A suspended message comes again before what is behind it in its lite topic, and the attempt does not count."""
    try:
        consumer = stage.lite(fail=1, poison="ada0", suspend_s=stage.servers.shortest_hold_s)
    except NoSuchCall:
        suspended, received = _suspended_by_hand(stage)
    else:
        consumer.subscribe("ada", "ben")
        _send_to_each(stage)
        suspended, received = "ada", consumer.hear(2 * EACH + 1)
    expected = {name: _sent_to(name) for name in ("ada", "ben")}
    expected[suspended].insert(0, f"{suspended}0")
    assert _by_lite_topic(received) == expected
    assert {each.attempt for each in received} == {1}


def _suspended_by_hand(stage: Stage) -> tuple[str, list[Received]]:
    consumer = stage.lite_simple()
    consumer.subscribe("ada", "ben")
    _send_to_each(stage)
    first = stage.first(consumer, stage.servers.shortest_hold_s + 10)
    consumer.suspend(first, stage.servers.shortest_hold_s)
    return first.body[:3], [first, *stage.collect(consumer, 2 * EACH)]


@scenario(Scene(accepts="LITE", lite="EXCLUSIVE"))
def lite_exclusive(stage: Stage) -> None:
    """In an exclusive group a client takes a lite topic from another client, which is told so."""
    first, second = stage.lite(), stage.lite()
    first.subscribe("ada", "ben")
    _send(stage, ada="to the first")
    _hears(first, "ada", "to the first")
    second.subscribe("ada")
    _send(stage, ada="to the second", ben="to the first")
    _hears(first, "ben", "to the first")
    _hears(second, "ada", "to the second")
    assert first.heard.empty(), "the first heard more"
    until(lambda: _is_told(stage, first, "ada"))


def _hears(consumer: OfficialLitePushConsumer, lite_topic: str, body: str) -> None:
    (heard,) = consumer.hear()
    assert (heard.lite_topic, heard.body) == (lite_topic, body), f"it heard {heard.lite_topic}: {heard.body}"


def _is_told(stage: Stage, consumer: OfficialLitePushConsumer, lost: str) -> bool:
    names = consumer.lite_topics()
    return f"notifyUnsubscribeLite liteTopic:{lost}" in stage.program.log if names is None else lost not in names


@scenario(SHARED)
def lite_quota(stage: Stage) -> None:
    """A client that subscribes to more lite topics than it may is refused; those that it has go on."""
    consumer, quota = stage.lite(), stage.servers.lite_quota
    names = [f"session-{number}" for number in range(quota)]
    consumer.subscribe(*names)
    with pytest.raises(Refused, match=r"(?i)quota"):
        consumer.subscribe("one-more")
    _send(stage, **{names[-1]: "UA1545"})
    assert [each.lite_topic for each in consumer.hear()] == [names[-1]]


def _send(stage: Stage, **bodies: str) -> None:
    producer = stage.producer()
    for lite_topic, body in bodies.items():
        producer.send(stage.topic, body, lite_topic=lite_topic)


def _send_to_each(stage: Stage) -> None:
    producer = stage.producer()
    for together in zip(*map(_sent_to, NAMES), strict=True):
        for body in together:
            producer.send(stage.topic, body, lite_topic=body[:3])


def _sent_to(name: str) -> list[str]:
    return [f"{name}{number}" for number in range(EACH)]


def _by_lite_topic(messages: Iterable[Received]) -> dict[str | None, list[str]]:
    found: dict[str | None, list[str]] = {}
    for each in messages:
        found.setdefault(each.lite_topic, []).append(each.body)
    return dict(sorted(found.items(), key=lambda each: str(each[0])))
