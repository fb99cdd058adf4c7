"""What a commit and a message that is handed back name for the writer to lock before."""

from __future__ import annotations

import pytest

from popserver.catalog import progress
from popserver.catalog.lookup import CATALOG_LOCK
from popserver.catalog.progress import GroupQueueKey
from popserver.engine.transaction import LockOrder
from popserver.model.group import ConsumeFrom, Group, HistoryLevel, Mode
from popserver.model.retry import RetryPolicy
from popserver.model.topic import MessageQueue, Topic
from popserver.pulling.commit import Commit
from popserver.pulling.rules import QueueOffset
from popserver.pulling.send_back import SendBack
from tests.support.builders import GROUP, TOPIC

QUEUES = (MessageQueue(7, 0), MessageQueue(8, 1))
PLACE = Topic(1, TOPIC, QUEUES, (), 0)


def a_group(mode: Mode | None) -> Group:
    return Group(5, GROUP, RetryPolicy(), ConsumeFrom.EARLIEST, HistoryLevel.ALL, mode, 0)


@pytest.mark.parametrize("mode", [None, *Mode])
def test_of_a_commit_its_progress_and_the_catalog_if_it_may_fix_the_mode(mode: Mode | None) -> None:
    commit = Commit(a_group(mode), [QueueOffset(PLACE, each, 1) for each in QUEUES])
    of_progress, *more = commit.locks()
    assert (of_progress.order, of_progress.take) == (LockOrder.PROGRESS, progress.lock)
    assert [*of_progress.keys] == [GroupQueueKey(5, 7), GroupQueueKey(5, 8)]
    assert more == ([CATALOG_LOCK] if mode is None else [])


@pytest.mark.parametrize("mode", [None, *Mode])
def test_of_a_message_handed_back_the_catalog_if_it_may_fix_the_mode(mode: Mode | None) -> None:
    failed = SendBack(a_group(mode), PLACE, QUEUES[0], 0, "c1")
    assert [*failed.locks()] == ([CATALOG_LOCK] if mode is None else [])
