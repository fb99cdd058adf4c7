"""A topic of message groups, and a group that consumes it."""

from __future__ import annotations

import pytest

from popserver.fifo import moving_starts
from popserver.model.group import Group
from popserver.model.topic import MessageType, Topic
from tests.support.open_store import OpenStore


@pytest.fixture(autouse=True)
def each_receive_moves_start_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving_starts, "ADVANCE_INTERVAL_MS", 0)
    monkeypatch.setattr(moving_starts, "SLOW_AFTER_MS", 0)


@pytest.fixture
def topic(store: OpenStore) -> Topic:
    return store.topic(accepts=(MessageType.FIFO,))


@pytest.fixture
def group(store: OpenStore, topic: Topic) -> Group:
    return store.group(meets=[topic])
