"""The calls about mirrors over gRPC, and by the client."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from popclient import ClientConfig
from popclient.admin import Admin, MirrorFacts, MirrorReport
from popclient.errors import BadRequest, NotFound, PreconditionFailed
from popproto.v1 import admin_pb2 as admin
from popproto.v2 import definition_pb2 as pb
from tests.support.admin_server import AdminServer, named

REPORT = MirrorReport("nightly", "old:8081", "new:8081", "flights", "billing", "owner-1", "ship, process 17")


@pytest.fixture
def operator(either_admin_server: AdminServer) -> Iterator[Admin]:
    with Admin(either_admin_server.server.endpoint) as client:
        yield client


def test_a_mirror_is_reported_listed_and_forgotten(either_admin_server: AdminServer, operator: Admin) -> None:
    assert operator.list_mirrors() == []
    claimed = operator.report_mirror(REPORT, claim=True)
    start = claimed.started_at
    assert claimed.lease_until == start + timedelta(seconds=30)
    either_admin_server.server.clock.advance("10s")
    now = start + timedelta(seconds=10)
    told = replace(
        REPORT, state="HELD", sentence="waits", position='{"at": 7}', handed=9, repeated=1, dead_letters=2, scheduled=3,
        bytes=4, lag=5,
    )  # fmt: skip
    stored = operator.report_mirror(told, lease=timedelta(minutes=5))
    assert stored == MirrorFacts(
        "nightly", "old:8081", "new:8081", "", "flights", "billing", "owner-1", "ship, process 17", "HELD", "waits",
        '{"at": 7}', 9, 1, 2, 3, 4, 5, now + timedelta(minutes=5), start, now,
        True, timedelta(),
    )  # fmt: skip
    assert operator.list_mirrors() == [replace(stored, position="")]
    with pytest.raises(PreconditionFailed, match="runs on ship, process 17"):
        operator.forget_mirror("nightly")
    ended = operator.report_mirror(replace(told, state="DONE", sentence=""))
    assert (ended.lease_until, ended.has_lease) == (now, False)
    operator.forget_mirror("nightly")
    assert operator.list_mirrors() == []
    with pytest.raises(NotFound, match="no mirror 'nightly' is recorded"):
        operator.forget_mirror("nightly")


def test_another_process_continues_where_the_first_one_was(either_admin_server: AdminServer, operator: Admin) -> None:
    operator.report_mirror(REPORT, claim=True)
    operator.report_mirror(replace(REPORT, position="here", handed=7), lease=5)
    second = replace(REPORT, owner="owner-2", host="raft")
    with pytest.raises(PreconditionFailed, match=r"runs already on ship, process 17 \(since .*\); .* wait 5 s"):
        operator.report_mirror(second, claim=True)
    either_admin_server.server.clock.advance("5s")
    taken = operator.report_mirror(second, claim=True)
    assert (taken.position, taken.handed, taken.host) == ("here", 7, "raft")
    with pytest.raises(PreconditionFailed, match="was taken over by raft"):
        operator.report_mirror(replace(REPORT, position="back"))
    assert operator.report_mirror(second, claim=True).position == "here"


def test_a_mirror_of_a_whole_topic_and_an_unknown_lag(operator: Admin) -> None:
    stored = operator.report_mirror(replace(REPORT, group=None))
    assert (stored.group, stored.lag) == (None, None)


def test_mirrors_of_a_namespace(either_admin_server: AdminServer, operator: Admin) -> None:
    operator.report_mirror(REPORT)
    with Admin(ClientConfig(either_admin_server.server.endpoint, namespace="eu")) as eu:
        assert eu.report_mirror(replace(REPORT, mirror_id="eu-nightly")).namespace == "eu"
        assert [each.mirror_id for each in eu.list_mirrors()] == ["eu-nightly"]
    assert [each.mirror_id for each in operator.list_mirrors()] == ["eu-nightly", "nightly"]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"mirror_id": "a b"}, "mirror_id 'a b' is not one of 1 to 64 characters"),
    ({"state": "GONE"}, "state is 'GONE'; choose one of RUNNING, HELD, STOPPED, DONE"),
    ({"topic": "a.b"}, "topic 'a.b' is not a name"),
    ({"position": "p" * 16_385}, "position has 16,385 bytes"),
    ({"handed": -1}, "handed is -1; it must be at least 0"),
    ({"lag": -2}, "lag is -2"),
]


@pytest.mark.parametrize(("other", "sentence"), REFUSED)
def test_a_refused_report_changes_nothing(admin_server: AdminServer, other: dict[str, Any], sentence: str) -> None:
    with Admin(admin_server.server.endpoint) as operator:
        operator.report_mirror(REPORT)
        before = admin_server.digest()
        with pytest.raises(BadRequest, match=sentence):
            operator.report_mirror(replace(REPORT, **other))
        for lease in (4.9, 301):
            with pytest.raises(BadRequest, match=r"lease is .* s; give 5 to 300 s"):
                operator.report_mirror(REPORT, lease=lease)
        assert admin_server.digest() == before


def test_a_group_of_another_namespace(admin_server: AdminServer) -> None:
    mirror = admin.Mirror(mirror_id="m", topic=named("eu/flights"), group=named("us/billing"), state="RUNNING")
    status = admin_server.call("ReportMirror", mirror=mirror).status
    assert status.code == pb.BAD_REQUEST
    assert status.message == "group us/billing is not in the namespace of topic eu/flights; a mirror has one namespace"
