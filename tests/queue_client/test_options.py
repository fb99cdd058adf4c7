"""What a queue push consumer may be told."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from popclient import QueuePushConsumer
from popclient._engine.flow import QueueLimits
from popclient._progress.start import ConsumeFromWhere
from popclient._queue_push.options import MessageModel, QueueOptions
from popclient.message import FilterExpression


class Consuming:
    """An object that consumes, and is no function."""

    def consume(self, *_: object) -> None: ...


def options(**given: Any) -> QueueOptions:
    plain: dict[str, Any] = {"group": "g", "topics": {"t": FilterExpression()}, "listener": print}
    return QueuePushConsumer("127.0.0.1:1", **plain | given)._core.options


def test_the_defaults_are_the_fields() -> None:
    plain = options()
    assert (plain.pull_batch_size, plain.pull_interval) == (32, timedelta(0))
    assert (plain.consume_message_batch_max_size, plain.consume_threads) == (1, 20)
    assert (plain.consume_timeout, plain.suspend_current_queue_time) == (timedelta(minutes=15), timedelta(seconds=1))
    assert (plain.post_subscription_when_pull, plain.offset_illegal_delay) == (False, timedelta(0))
    assert (plain.pull_batch_size_in_bytes, plain.consume_threads_min) == (256 * 1024, None)
    assert (plain.pull_delay_when_exception, plain.persist_interval) == (timedelta(seconds=3), timedelta(seconds=5))
    assert plain.flow == QueueLimits(1_000, 100, -1, -1, 2_000)
    assert plain.most_reconsume_times is None
    assert plain.is_clustering


def test_reconsume_times_may_be_set() -> None:
    assert options(max_reconsume_times=0).most_reconsume_times == 0


@pytest.mark.row("N8")
@pytest.mark.parametrize(
    ("given", "kind", "sentence"),
    [
        ({"group": ""}, ValueError, "group is ''; a queue push consumer needs the name"),
        ({"topics": {}}, ValueError, "a consumer needs at least one topic"),
        (
            {"topics": {"": FilterExpression()}},
            ValueError,
            r"topics are .* a queue push consumer needs a name for each",
        ),
        ({"listener": None}, TypeError, "listener is None; give a function"),
        ({"offset_store": object()}, TypeError, "derive it from OffsetStore"),
        (
            {"consume_from": ConsumeFromWhere.CONSUME_FROM_TIMESTAMP, "consume_timestamp": "yesterday"},
            ValueError,
            "consume_timestamp is 'yesterday'; it must be yyyyMMddHHmmss",
        ),
        ({"pull_batch_size": 0}, ValueError, "pull_batch_size is 0; it must be from 1 to 1024"),
        ({"pull_batch_size": "32"}, TypeError, "pull_batch_size is '32'; it must be a whole number, from 1 to 1024"),
        ({"pull_batch_size": True}, TypeError, "pull_batch_size is True"),
        ({"consume_message_batch_max_size": 1_025}, ValueError, "consume_message_batch_max_size is 1025"),
        ({"consume_threads": 1_001}, ValueError, "consume_threads is 1001; it must be from 1 to 1000"),
        ({"consume_threads_min": 0}, ValueError, "consume_threads_min is 0; it must be from 1 to 20"),
        ({"consume_threads_min": 21}, ValueError, "consume_threads_min is 21; it must be from 1 to 20"),
        ({"consume_threads_min": 1.5}, TypeError, "consume_threads_min is 1.5; it must be a whole number"),
        ({"pull_batch_size_in_bytes": 0}, ValueError, "pull_batch_size_in_bytes is 0; it must be from 1 to 262144"),
        ({"pull_batch_size_in_bytes": 1 << 20}, ValueError, "pull_batch_size_in_bytes is 1048576; it must be from 1"),
        ({"pull_delay_when_exception": timedelta(0)}, ValueError, "pull_delay_when_exception is 0:00:00; it must be"),
        ({"persist_interval": timedelta(0)}, ValueError, "persist_interval is 0:00:00; it must be"),
        ({"max_reconsume_times": -2}, ValueError, "max_reconsume_times is -2; it must be from -1"),
        ({"pull_interval": timedelta(seconds=66)}, ValueError, "pull_interval is 0:01:06; it must be"),
        ({"consume_timeout": timedelta(0)}, ValueError, "consume_timeout is 0:00:00; it must be"),
        ({"suspend_current_queue_time": timedelta(milliseconds=9)}, ValueError, "from 0.01 s to 30 s"),
        ({"suspend_current_queue_time": timedelta(seconds=31)}, ValueError, "from 0.01 s to 30 s"),
        ({"drain_timeout": timedelta(seconds=-1)}, ValueError, "drain_timeout is"),
    ],
)
def test_what_could_not_work_is_refused_at_the_making(
    given: dict[str, Any], kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence):
        options(**given)


def test_an_object_that_consumes_is_a_listener() -> None:
    options(listener=Consuming())


def test_models_have_names() -> None:
    assert MessageModel.of("BROADCASTING") is MessageModel.BROADCASTING
    with pytest.raises(ValueError, match="model is 'ALL'; it must be one of CLUSTERING, BROADCASTING"):
        MessageModel.of("ALL")
