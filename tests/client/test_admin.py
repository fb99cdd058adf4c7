"""The administration's client where there is no administration, or no server at all."""

from __future__ import annotations

import time

import pytest

from popclient import Unreachable, UnsupportedByServer
from popclient.admin import Admin
from tests.client.scripted import ServerThread


def test_a_rocketmq_server_has_no_administration(threaded: ServerThread) -> None:
    with Admin(threaded.endpoints) as admin, pytest.raises(UnsupportedByServer, match="only PopMQ offers it"):
        admin.status()


def test_nobody_there_is_told_fast() -> None:
    with ServerThread() as gone:
        endpoints = gone.endpoints
    began = time.monotonic()
    with Admin(endpoints, connect_timeout=0.2) as admin, pytest.raises(Unreachable, match=endpoints):
        admin.status()
    assert time.monotonic() - began < 1
