"""The records of mirrors and their leases, on both databases."""

from __future__ import annotations

from typing import Any

import pytest

from popserver.mirrors import records
from popserver.mirrors.records import ForgetMirror, ReportMirror, find, write
from popserver.mirrors.rules import MirrorFacts, MirrorRow
from popserver.model.errors import AlreadyExists, BadRequest, LeaseTaken, NotFound
from popserver.model.retry import HOUR_MS, SECOND_MS
from popserver.model.states import MirrorState
from tests.support.open_store import OpenStore

LEASE_MS = 30 * SECOND_MS
FACTS = MirrorFacts(
    "nightly", "old:8081", "new:8081", "eu", "flights", "billing", "owner-1", "ship:17", MirrorState.RUNNING
)


def claim(store: OpenStore, **other: Any) -> MirrorRow:
    return store.one(write, ReportMirror(FACTS._replace(**other), LEASE_MS, claim=True))


def report(store: OpenStore, **other: Any) -> MirrorRow:
    return store.one(write, ReportMirror(FACTS._replace(**other), LEASE_MS, claim=False))


def forget(store: OpenStore) -> MirrorRow:
    return store.one(write, ForgetMirror(FACTS.mirror_id))


def test_a_report_writes_the_facts_and_renews_the_lease(store: OpenStore) -> None:
    start_ms = store.now_ms
    claimed = claim(store)
    assert claimed == MirrorRow(
        *FACTS[:8], start_ms + LEASE_MS, "RUNNING", "", "", 0, 0, 0, 0, 0, -1, start_ms, start_ms
    )
    store.now_ms += 10 * SECOND_MS
    told = report(
        store,
        source="older:8081",
        host="ship:18",
        state=MirrorState.HELD,
        sentence="the target is full",
        position='{"at": 7}',
        handed=7,
        repeated=2,
        dead_letters=1,
        scheduled=3,
        bytes=2**62,
        lag=0,
    )
    assert told == MirrorRow(
        "nightly", "older:8081", "new:8081", "eu", "flights", "billing", "owner-1", "ship:18", store.now_ms + LEASE_MS,
        "HELD", "the target is full", '{"at": 7}', 7, 2, 1, 3, 2**62, 0, start_ms, store.now_ms,
    )  # fmt: skip
    assert find(store.conn, "nightly") == told
    assert records.listed(store.conn) == [told._replace(position="")]


def test_the_lease_of_another_owner_is_refused_until_it_is_over(store: OpenStore) -> None:
    told = (claim(store), report(store, position="here", handed=5))[1]
    store.now_ms += LEASE_MS - 2_500
    with pytest.raises(
        LeaseTaken, match=r"'nightly' runs already on ship:17 \(since 20.*\); stop it there, or wait 3 s"
    ):
        claim(store, owner="owner-2", host="raft:1")
    assert find(store.conn, "nightly") == told, "a refusal changes nothing"
    store.now_ms += 2_500
    taken = claim(store, owner="owner-2", host="raft:1", source="other:1", position="there", handed=9)
    assert taken == told._replace(
        owner="owner-2", host="raft:1", lease_until_ms=store.now_ms + LEASE_MS, started_at_ms=store.now_ms,
        updated_at_ms=store.now_ms,
    ), "position, counts and endpoints are those of the former process"  # fmt: skip


def test_an_owner_that_has_lost_the_lease_is_told_who_has_it(store: OpenStore) -> None:
    claim(store)
    store.now_ms += LEASE_MS
    claim(store, owner="owner-2", host="raft:1")
    report(store, owner="owner-2", host="raft:1", position="further", state=MirrorState.DONE)
    with pytest.raises(LeaseTaken, match=r"'nightly' was taken over by raft:1 \(since 20"):
        report(store, position="back")
    found = find(store.conn, "nightly")
    assert found is not None
    assert found.position == "further", "also after the other one has ended"


def test_an_owner_keeps_a_lease_that_nobody_has_taken(store: OpenStore) -> None:
    start_ms = claim(store).started_at_ms
    store.now_ms += HOUR_MS
    assert report(store, handed=1).lease_until_ms == store.now_ms + LEASE_MS
    assert claim(store).started_at_ms == start_ms, "a repeated claim is the same one"
    assert claim(store).handed == 1


@pytest.mark.parametrize("state", [MirrorState.STOPPED, MirrorState.DONE])
def test_the_last_report_ends_the_lease(store: OpenStore, state: MirrorState) -> None:
    claim(store)
    ended = report(store, state=state, sentence="all is there")
    assert not ended.has_lease(store.now_ms)
    assert not ended.is_lost(store.now_ms)
    taken = claim(store, owner="owner-2")
    assert (taken.state, taken.sentence) == ("RUNNING", ""), "what the former one said is over"
    assert taken.has_lease(store.now_ms)
    store.now_ms += LEASE_MS
    assert taken.is_lost(store.now_ms), "it has not said that it ends"


def test_the_position_of_another_topic_or_group_is_of_no_use(store: OpenStore) -> None:
    claim(store)
    store.now_ms += LEASE_MS
    for other in ({"topic": "trains"}, {"consumer_group": ""}, {"namespace": ""}):
        for tell in (claim, report):
            with pytest.raises(AlreadyExists, match="hands over eu/flights for billing, and its position is of no use"):
                tell(store, owner="owner-1", **other)


def test_a_report_without_a_record_makes_one(store: OpenStore) -> None:
    assert report(store, handed=3).handed == 3
    with pytest.raises(LeaseTaken):
        claim(store, owner="owner-2")


def test_a_record_is_forgotten_when_its_lease_is_over(store: OpenStore) -> None:
    with pytest.raises(NotFound, match="no mirror 'nightly' is recorded"):
        forget(store)
    claim(store)
    with pytest.raises(LeaseTaken, match=r"runs on ship:17 .* wait 30 s if it has ended, then forget it"):
        forget(store)
    store.now_ms += LEASE_MS
    assert forget(store).mirror_id == "nightly"
    assert find(store.conn, "nightly") is None


def test_a_clock_that_was_set_back_makes_no_lease_longer(store: OpenStore) -> None:
    claim(store)
    store.now_ms -= HOUR_MS
    assert claim(store, owner="owner-2").lease_until_ms == store.now_ms + LEASE_MS
    store.now_ms -= HOUR_MS
    assert forget(store).owner == "owner-2"


def test_only_so_many_are_recorded(store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.do(write, *(ReportMirror(FACTS._replace(mirror_id=f"m{n}"), LEASE_MS, claim=True) for n in range(1_000)))
    assert len(records.listed(store.conn)) == 1_000
    for tell in (claim, report):
        with pytest.raises(BadRequest, match=r"1,000 mirrors are recorded, and no more are allowed; forget one"):
            tell(store)
        assert tell(store, mirror_id="m7").mirror_id == "m7", "those that are recorded go on"
    store.now_ms += LEASE_MS
    store.one(write, ForgetMirror("m7"))
    assert claim(store).mirror_id == "nightly"


def test_requests_of_one_transaction_are_answered_in_their_order(store: OpenStore) -> None:
    first, second = FACTS._replace(mirror_id="z"), FACTS._replace(mirror_id="a")
    told: list[ReportMirror | ForgetMirror] = [
        ReportMirror(first, LEASE_MS, claim=True),
        ReportMirror(second, LEASE_MS, claim=True),
        ForgetMirror("a"),
        ForgetMirror("m"),
    ]
    of_z, of_a, refused, missing = store.do(write, *told)
    assert [each.mirror_id for each in (of_z, of_a) if isinstance(each, MirrorRow)] == ["z", "a"]
    assert (type(refused), type(missing)) == (LeaseTaken, NotFound)
