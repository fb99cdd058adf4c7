"""Several servers on one Postgres: each dead letter goes back once, and ids of dead letters are seen in their order."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from popserver.catalog import groups, lookup
from popserver.dead_letters import plan_requests, plans
from popserver.dead_letters.flow import Redrives
from popserver.dead_letters.plan_requests import RunPlan
from popserver.dead_letters.rules import LetterSelection
from popserver.delivery.dead_letter_topic import DeadLetterCandidate, move_to_dead_letters
from popserver.engine.transaction import Locks, Request, Transaction, lock
from popserver.model.names import Resource
from popserver.model.retry import Holder
from popserver.model.states import Event
from tests.support.builders import GROUP, TOPIC
from tests.support.open_store import MINUTE, OpenStore, open_store
from tests.support.redrive import die, letter_ids, lineage, write_plan
from tests.support.running_broker import RunningBroker
from tests.support.several_brokers import SeveralBrokers

COUNT = 60


def kill(store: OpenStore, name: str) -> None:
    """In a transaction that stays open, a message of the group dies."""
    group = groups.find_group(store.conn, Resource("", name))
    assert group is not None
    tx = Transaction.at(store.conn, store.now_ms)
    store.database.begin(store.conn)
    row = store.rows("SELECT message_key, topic_id FROM delivery WHERE group_id = :id LIMIT 1", id=group.group_id)[0]
    move_to_dead_letters(
        tx, group, [DeadLetterCandidate(row.message_key, row.topic_id, 1, "c1")], Event.FORWARD_TO_DLQ, "test"
    )
    tx.finish()


def test_an_id_is_never_seen_after_a_higher_one(postgres_url: str) -> None:
    """The second to write dead letters waits until the first is seen, whatever groups they are of."""
    with open_store(postgres_url) as one, open_store(postgres_url) as other:
        topic = one.topic()
        groups = [one.group(name, meets=[topic]) for name in ("first", "second")]
        one.send(topic)
        for group in groups:
            one.receive(group, topic, holder=Holder.SIMPLE, invisible_ms=MINUTE)
        kill(one, "first")
        seen: list[int] = []

        def second() -> None:
            kill(other, "second")
            seen.append(other.one_value("SELECT COUNT(*) FROM dead_letter"))
            other.conn.exec_driver_sql("COMMIT")

        thread = threading.Thread(target=second)
        thread.start()
        _wait_for_a_lock(one)
        assert not seen, "it has drawn no id yet"
        one.conn.exec_driver_sql("COMMIT")
        thread.join(60)
        assert seen == [2], "when it had the lock it saw the first one's"


def _wait_for_a_lock(store: OpenStore) -> None:
    query = "SELECT COUNT(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    deadline = time.monotonic() + 10
    while not store.one_value(query):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_who_changes_what_exists_beside_a_plan_waits_in_no_circle(postgres_url: str) -> None:
    """One has the plan and creates a topic on its way; the other may fix a mode, and runs the plan too."""
    with open_store(postgres_url) as one, open_store(postgres_url) as other:
        beginning = [_begin(each) for each in (one, other)]
        lock(beginning[0], [RunPlan("p1", 1)])
        got: list[str] = []

        def second() -> None:
            lock(beginning[1], [_MayFixMode(), RunPlan("p1", 1)])
            got.append("both")

        thread = threading.Thread(target=second)
        thread.start()
        _wait_for_a_lock(one)
        assert lookup.lock_if_free(beginning[0]), "who waits for a plan does not have it"
        assert not got
        one.conn.exec_driver_sql("COMMIT")
        thread.join(60)
        assert got == ["both"]
        other.conn.exec_driver_sql("COMMIT")


class _MayFixMode(Request[None]):
    """A commit of a group that has no mode yet."""

    def locks(self) -> tuple[Locks]:
        return (lookup.CATALOG_LOCK,)


def _begin(store: OpenStore) -> Transaction:
    store.database.begin(store.conn)
    return Transaction.at(store.conn, store.now_ms)


@pytest.mark.row("L12")
async def test_both_run_one_plan_and_each_message_goes_back_once(servers: SeveralBrokers) -> None:
    await _fill(servers.a)
    redrives = [each.broker.redrives() for each in (servers.a, servers.b)]
    plan = await redrives[0].plan("p1", LetterSelection(GROUP), "", None, "")
    assert plan.planned == COUNT

    async def run(mine: Redrives) -> int:
        done = 0
        while (step := await mine.run("p1", 7)).plan.planned:
            done += step.redriven
        return done + step.redriven

    assert sum(await asyncio.gather(*map(run, redrives))) == COUNT
    (deliveries,) = await servers.a.query("SELECT COUNT(*) AS n FROM delivery WHERE state = 'READY'")
    assert deliveries.n == COUNT
    assert (await redrives[1].plans(GROUP, None))[0].redriven == COUNT


async def test_both_write_one_plan_down_and_each_message_stands_in_it_once(servers: SeveralBrokers) -> None:
    await _fill(servers.a)
    redrives = [each.broker.redrives() for each in (servers.a, servers.b)]
    plans = await asyncio.gather(*(each.plan("p1", LetterSelection(GROUP), "", None, "") for each in redrives))
    assert [(each.state, each.planned) for each in plans] == [("PLANNED", COUNT)] * 2


async def test_two_plans_at_two_servers_share_what_is_dead(servers: SeveralBrokers) -> None:
    await _fill(servers.a)
    redrives = [each.broker.redrives() for each in (servers.a, servers.b)]
    for mine, plan_id in zip(redrives, ("p1", "p2"), strict=True):
        await mine.plan(plan_id, LetterSelection(GROUP), "", None, "")
    done = await asyncio.gather(*(each.run(plan_id, 0) for each, plan_id in zip(redrives, ("p1", "p2"), strict=True)))
    assert sum(each.redriven for each in done) == COUNT
    assert sum(each.skipped for each in done) == COUNT


async def _fill(server: RunningBroker) -> None:
    await server.topic()
    await server.group()
    left = COUNT
    while left:
        await server.send(min(left, 30))
        for each in await server.receive(batch_size=30):
            await server.broker.forward_to_dead_letter_queue(GROUP, TOPIC, each.receipt_handle)
            left -= 1


def test_what_breaks_off_between_steps_goes_on(postgres_url: str) -> None:
    """A server that is killed leaves the steps it has committed, and nothing of the one it was at."""
    with open_store(postgres_url) as one, open_store(postgres_url) as other:
        topic = one.topic()
        group = one.group(meets=[topic])
        die(one, group, topic, 10)
        write_plan(one, group)
        assert one.one(plans.run_plan, RunPlan("p1", 4)) == (4, 0)
        one.database.begin(one.conn)
        tx = Transaction.at(one.conn, one.now_ms)
        plan_requests.lock(tx, ["p1"])
        assert plans.run_plan(tx, [RunPlan("p1", 4)]) == [(4, 0)]
        one.conn.exec_driver_sql("ROLLBACK")
        assert other.one(plans.run_plan, RunPlan("p1", 4)) == (4, 0)
        assert other.one(plans.run_plan, RunPlan("p1", 4)) == (2, 0)
        assert [row.state for row in lineage(other, "p1")] == ["REDRIVEN"] * 10
        assert len(letter_ids(other, group)) == len(other.receive(group, topic)) == 10
