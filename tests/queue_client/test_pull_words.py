"""What a pull says, and what its answer means."""

from __future__ import annotations

from datetime import timedelta

import pytest

from popclient import UnexpectedAnswer
from popclient._queues.pull import (
    PullStatus,
    backwards,
    pull_extras,
    pull_status,
)
from popclient._queues.subscription import TopicSubscription, is_retry_topic, retry_topic, subscriptions
from popclient.message import FilterExpression
from popproto.v1 import legacy_pb2 as legacy
from popproto.v2 import definition_pb2 as pb


def test_the_extras_of_a_pull() -> None:
    extras = pull_extras(hold=timedelta(seconds=15), commit_offset=77, resets=2, sub_version=1_700_000_000_000)
    assert extras == legacy.PullExtras(sys_flag=3, commit_offset=77, resets=2, sub_version=1_700_000_000_000)


@pytest.mark.row("B4")
@pytest.mark.parametrize(
    ("given", "flag", "commit_offset"),
    [
        ({"hold": timedelta(0)}, 0, 0),
        ({"hold": timedelta(0), "commit_offset": 0}, 0, 0),
        ({"hold": timedelta(0), "commit_offset": -1}, 0, 0),
        ({"hold": timedelta(0), "commit_offset": 1}, 1, 1),
        ({"hold": timedelta(seconds=1)}, 2, 0),
        ({"hold": timedelta(0), "post_subscription": True}, 4, 0),
    ],
)
def test_the_sys_flag_says_what_the_pull_carries(given: dict[str, object], flag: int, commit_offset: int) -> None:
    extras = pull_extras(**given)  # type: ignore[arg-type]
    assert (extras.sys_flag, extras.commit_offset) == (flag, commit_offset)


@pytest.mark.parametrize(
    ("code", "next_offset", "expected"),
    [
        (pb.OK, 42, PullStatus.FOUND),
        (pb.MESSAGE_NOT_FOUND, 10, PullStatus.NO_NEW_MSG),
        (pb.MESSAGE_NOT_FOUND, 11, PullStatus.NO_MATCHED_MSG),
        (pb.MESSAGE_NOT_FOUND, 9, PullStatus.NO_NEW_MSG),
        (pb.ILLEGAL_OFFSET, 50, PullStatus.OFFSET_ILLEGAL),
        (pb.ILLEGAL_OFFSET, 0, PullStatus.OFFSET_ILLEGAL),
    ],
)
def test_status_code_and_next_offset_together_say_what_happened(
    code: int, next_offset: int, expected: PullStatus
) -> None:
    assert pull_status(code, next_offset, offset=10) is expected


def test_an_answer_that_says_nothing_of_the_queue_is_no_pull_status() -> None:
    with pytest.raises(UnexpectedAnswer, match=f"from offset 10 was answered {pb.TOPIC_NOT_FOUND}"):
        pull_status(pb.TOPIC_NOT_FOUND, 10, offset=10)
    with pytest.raises(UnexpectedAnswer, match="is to go on from -1"):
        pull_status(pb.MESSAGE_NOT_FOUND, -1, offset=10)


@pytest.mark.parametrize(
    ("next_offset", "first_offset", "is_back"),
    [(10, None, False), (12, 10, False), (9, None, True), (12, 9, True), (9, 9, True)],
)
def test_a_pull_that_leads_back_is_told(next_offset: int, first_offset: int | None, is_back: bool) -> None:
    sentence = backwards(10, next_offset, first_offset)
    assert (sentence is not None) is is_back
    assert sentence is None or f"offset 10 led back: next offset {next_offset}" in sentence


def test_the_retry_topic_is_subscribed_whole_where_there_are_retries() -> None:
    tagged = FilterExpression("a || b")
    assert subscriptions("g", {"t": tagged}, 7, retries=True) == {
        "t": TopicSubscription("t", tagged, 7),
        "%RETRY%g": TopicSubscription("%RETRY%g", FilterExpression("*"), 7),
    }
    assert list(subscriptions("g", {"t": tagged}, 7, retries=False)) == ["t"]
    assert is_retry_topic(retry_topic("g")) and not is_retry_topic("t")
