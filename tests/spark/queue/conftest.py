"""A broker in this process whose clock the test moves, and two ways to read from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from popclient.admin import Admin

if TYPE_CHECKING:
    from popserver.in_process import EmbeddedBroker
    from tests.spark.queue.seen import Seen


@pytest.fixture
def admin(pop_server: EmbeddedBroker) -> Iterator[Admin]:
    from tests.spark.queue.seen import QUEUES

    with Admin(pop_server.endpoint) as admin:
        admin.create_topic("flights", queue_count=QUEUES)
        yield admin


@pytest.fixture(params=["in bulk", "one by one"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How messages reach the reader: as columns, or as from a server that has not got them."""
    from popclient.spark import message_columns
    from popclient.spark.link import ServerLink

    monkeypatch.setattr(message_columns, "BATCH_ROWS_MAX", 500)
    if request.param == "one by one":
        monkeypatch.setattr(ServerLink, "offers", lambda _link, _capability: False)
    return str(request.param)


@pytest.fixture
def seen(pop_server: EmbeddedBroker, admin: Admin) -> Seen:
    from tests.spark.queue.seen import Seen

    return Seen(pop_server.endpoint)
