"""What an operation on holds names for the writer to lock before: the progress of the queues of message groups."""

from __future__ import annotations

import pytest

from popserver.catalog.progress import GroupQueueKey, locks_of
from popserver.model.group import Group
from popserver.model.handles import Receipt
from popserver.model.topic import OFFSET_BITS
from popserver.settling import ack, change, release
from tests.support.open_store import START_MS, OpenStore


@pytest.fixture
def group(store: OpenStore) -> Group:
    return store.group()


def a_receipt(group: Group, queue_id: int, *, in_order: bool) -> Receipt:
    return Receipt(group.group_id, queue_id << OFFSET_BITS, 1, START_MS, in_order=in_order)


def test_each_queue_with_a_message_of_a_message_group_is_named(group: Group) -> None:
    receipts = [a_receipt(group, queue_id, in_order=queue_id != 8) for queue_id in (7, 8, 9, 7)]
    expected = locks_of({GroupQueueKey(group.group_id, queue_id) for queue_id in (7, 9)})
    for request in (ack.Ack(group, receipts), release.CancelDelivery(receipts)):
        assert [*request.locks()] == [*expected]


@pytest.mark.parametrize("in_order", [True, False])
def test_of_one_hold_its_queue_if_it_is_in_a_message_group(group: Group, in_order: bool) -> None:
    receipt = a_receipt(group, 7, in_order=in_order)
    expected = [*locks_of({GroupQueueKey(group.group_id, 7)})] if in_order else []
    for request in (change.ChangeInvisible(group, receipt, 1), change.Forward(group, receipt)):
        assert [*request.locks()] == expected


def test_nothing_is_named_for_messages_in_no_message_group(group: Group) -> None:
    receipts = [a_receipt(group, 7, in_order=False)]
    assert [*ack.Ack(group, receipts).locks(), *ack.PlainAck(group, receipts).locks()] == []
