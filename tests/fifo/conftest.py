"""A topic of message groups, and a group that consumes it."""

from __future__ import annotations

import pytest

from popserver.model.group import Group
from popserver.model.topic import MessageType, Topic
from tests.support.open_store import OpenStore


@pytest.fixture
def topic(store: OpenStore) -> Topic:
    return store.topic(accepts=(MessageType.FIFO,))


@pytest.fixture
def group(store: OpenStore, topic: Topic) -> Group:
    return store.group(meets=[topic])
