"""What stands behind a locked message of its group is READY, though the scan has gone past it."""

from __future__ import annotations

import pytest

from popserver.model.errors import InvalidReceiptHandle
from popserver.model.states import State
from popserver.model.topic import MessageType
from tests.support.builders import in_order
from tests.support.open_store import HOUR, OpenStore, ids, receipt_of


def test_nothing_calls_it_committed(store: OpenStore) -> None:
    topic = store.topic(accepts=(MessageType.FIFO,))
    group = store.group(meets=[topic])
    sent = in_order("g", 3)
    store.send(topic, sent)
    (held,) = store.receive(group, topic, 1, invisible_ms=HOUR)
    assert store.receive(group, topic) == []
    assert store.states(group) == dict(
        zip([each.message_id for each in sent], [State.INFLIGHT, State.READY, State.READY], strict=True)
    )
    assert store.lag(group).ready == 2
    second = receipt_of(held)._replace(message_key=held.stored.message_key + 1)
    assert isinstance(store.ack(group, second)[0], InvalidReceiptHandle)
    with pytest.raises(InvalidReceiptHandle, match="the message is READY in group"):
        store.change(group, second, HOUR)
    assert isinstance(store.forward(group, second), InvalidReceiptHandle)
    store.ack(group, held)
    assert ids(store.receive(group, topic)) == [each.message_id for each in sent[1:]]
