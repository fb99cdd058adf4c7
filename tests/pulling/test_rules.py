"""Where a pull must begin, and the numbers that the wire has."""

from __future__ import annotations

import pytest

from popserver.model.errors import TopicRecreated
from popserver.model.names import Resource
from popserver.model.topic import MessageQueue, Topic
from popserver.pulling import rules
from popserver.pulling.rules import PullFlag, PullStatus, check_generation, correction

TOPIC = Topic(1, Resource("", "t"), (MessageQueue(1, 0),), (), 1_000)


@pytest.mark.parametrize(
    ("offset", "is_of_this_topic", "begins_at"),
    [(2, True, 3), (3, True, None), (5, True, None), (7, True, None), (8, True, 7), (2, False, 3), (7, False, None),
     (8, False, 3)],
)  # fmt: skip
def test_where_a_pull_begins_instead(offset: int, is_of_this_topic: bool, begins_at: int | None) -> None:
    assert correction(offset, 3, 7, is_of_this_topic=is_of_this_topic) == begins_at


def test_an_offset_is_of_this_topic_if_nobody_says_otherwise() -> None:
    assert correction(8, 3, 7) == 7


def test_numbers_and_names_of_the_wire() -> None:
    assert [each.value for each in PullFlag] == [1, 2, 4, 8, 16]
    assert [each.value for each in PullStatus] == [
        "FOUND", "NO_NEW_MSG", "NO_MATCHED_MSG", "OFFSET_ILLEGAL", "MADE_ANEW",
    ]  # fmt: skip
    assert (rules.BATCH_SIZE_MAX, rules.BATCH_BYTES_MAX) == (160, 262_144)
    assert rules.NO_PROGRESS == (-1, 0, 0)
    assert rules.QueueProgress(5, 1).generation == 0
    assert rules.QueueOffset(TOPIC, TOPIC.queues[0], 5).resets is None, "a commit of a client that knows no resets"
    assert rules.Pulled(PullStatus.FOUND, [], 1, 0, 1).generation == 0


def test_offsets_of_an_earlier_topic_are_refused() -> None:
    for generation in (0, TOPIC.generation):
        check_generation(TOPIC, generation)
    for generation in (1, TOPIC.generation + 1):
        with pytest.raises(TopicRecreated, match="topic 't' was deleted and created again") as caught:
            check_generation(TOPIC, generation)
        assert caught.value.generation == TOPIC.generation > 1
