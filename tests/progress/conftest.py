"""A store on each database, and a server over either."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.admin_server import AdminServer
from tests.support.admin_server import opened as opened_server
from tests.support.wire_server import WireServer


@pytest.fixture
def wire_server(timed_wire_server: WireServer) -> WireServer:
    return timed_wire_server


@pytest.fixture
def admin_server(database_url: str) -> Iterator[AdminServer]:
    with opened_server(database_url) as admin_server:
        yield admin_server
