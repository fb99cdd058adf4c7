"""Who is let in, as the server remembers it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from popserver.access import flow as access_flow
from popserver.access import sql as access_sql
from popserver.access.flow import Access, Rules
from popserver.access.users import Users
from popserver.model.acl import Action, Effect, ResourceKind, Right
from popserver.model.errors import BadRequest, Forbidden, NotFound, StoreUnavailable, Unauthorized
from popserver.model.names import Resource
from tests.support.running_broker import RunningBroker, until
from tests.support.signing import DATE, signed

SECRET = "correct-horse"
ORDERS = Right(Action.PUB, ResourceKind.TOPIC, Resource("", "orders"))
BILLING = Right(Action.SUB, ResourceKind.GROUP, Resource("", "billing"))


class Guard:
    """A server's book of users, and an operator who writes in it."""

    def __init__(self, running: RunningBroker, access: Access) -> None:
        self.access = access
        self.users = Users(running.broker.engine.writer, running.broker.engine.reader, access)

    def enter(self, access_key: str = "alice", secret: str = SECRET, date_time: str = DATE, **more: Any) -> Any:
        headers = signed(access_key, secret, date_time, **more)
        return self.access.authenticate(headers["authorization"], headers["x-mq-date-time"])

    def may(self, right: Right, access_key: str = "alice") -> bool:
        try:
            self.access.check(self.enter(access_key), [(right,)])
        except Forbidden:
            return False
        return True

    async def allow(self, right: Right, effect: Effect = Effect.ALLOW) -> int:
        policy = await self.users.add_policy("alice", effect, (right.action,), right.kind, right.name)
        return policy.policy_id


@asynccontextmanager
async def guarded(running: RunningBroker, *, is_shared: bool = False, **rules: Any) -> AsyncIterator[Guard]:
    access = Access(running.broker.engine.reader, running.clock, Rules(auth=True, **rules), is_shared=is_shared)
    guard = Guard(running, access)
    await guard.users.ensure_admin("root", SECRET)
    await access.start()
    try:
        yield guard
    finally:
        await access.close()


@pytest.fixture
async def guard(broker: RunningBroker) -> AsyncIterator[Guard]:
    async with guarded(broker) as opened:
        await opened.users.add("alice", SECRET, is_admin=False)
        yield opened


@pytest.mark.parametrize("upper", [True, False])
async def test_a_right_signature_is_let_in_again_and_again(guard: Guard, upper: bool) -> None:
    assert guard.enter(upper=upper).access_key == "alice"
    assert guard.enter(upper=upper) is guard.enter(upper=upper)


async def test_a_wrong_one_is_not_and_which_part_is_wrong_is_not_told(guard: Guard) -> None:
    await guard.users.add("bob", SECRET, is_admin=False)
    await guard.users.set_disabled("bob", True)
    told = set()
    for access_key, secret in (("alice", "wrong-secret"), ("nobody", SECRET), ("bob", SECRET), ("", SECRET)):
        with pytest.raises(Unauthorized) as refused:
            guard.enter(access_key or "%", secret)
        told.add(refused.value.sentence)
    assert len(told) == 1
    assert not guard.access._verified, "a wrong one leaves nothing behind"


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": ""},
        {"x-mq-date-time": ""},
        {"authorization": "MQv2-HMAC-SHA1 Credential=, SignedHeaders=x-mq-date-time, Signature="},
        {"authorization": "Basic YWxpY2U6eA=="},
    ],
)
async def test_an_unsigned_call_is_told_so(guard: Guard, headers: dict[str, str]) -> None:
    sent = signed("alice", SECRET) | headers
    with pytest.raises(Unauthorized, match="requires signed calls"):
        guard.access.authenticate(sent["authorization"], sent["x-mq-date-time"])


async def test_the_signature_of_another_date_is_wrong(guard: Guard) -> None:
    with pytest.raises(Unauthorized):
        guard.access.authenticate(signed("alice", SECRET)["authorization"], "20250101T000001Z")


async def test_nobody_with_a_known_secret_is_let_in(guard: Guard) -> None:
    with pytest.raises(Unauthorized):
        guard.enter("", access_flow._UNKNOWN_USER.secret)
    with pytest.raises(Unauthorized):
        guard.enter("mallory", access_flow._UNKNOWN_USER.secret)


async def test_without_a_policy_nothing_is_allowed(guard: Guard) -> None:
    assert not guard.may(ORDERS)
    number = await guard.allow(ORDERS)
    assert guard.may(ORDERS)
    assert not guard.may(BILLING)
    await guard.allow(ORDERS, Effect.DENY)
    assert not guard.may(ORDERS)
    await guard.users.remove_policy(number)
    assert not guard.may(ORDERS)


async def test_an_admin_may_everything(guard: Guard) -> None:
    assert guard.may(ORDERS, "root")
    assert guard.may(BILLING, "root")


async def test_a_need_is_a_choice(guard: Guard) -> None:
    alice = guard.enter()
    with pytest.raises(
        Forbidden,
        match="may not PUB topic 'orders' or SUB group 'billing': no policy allows it; allow it to send with: popmq acl"
        " policy add alice allow PUB topic:orders, or to receive with: popmq acl policy add alice allow SUB"
        " group:billing",
    ):
        guard.access.check(alice, [(ORDERS, BILLING)])
    await guard.allow(BILLING)
    guard.access.check(alice, [(ORDERS, BILLING)])
    with pytest.raises(Forbidden):
        guard.access.check(alice, [(BILLING,), (ORDERS,)])


async def test_every_change_counts_at_once(guard: Guard) -> None:
    before, changes = guard.enter(), []
    guard.access.on_change(lambda: changes.append(True))
    await guard.users.rotate("alice", "another-secret")
    assert len(changes) == 1
    for late in (lambda: guard.enter(), lambda: guard.access.check_current(before)):
        with pytest.raises(Unauthorized):
            late()
    assert guard.enter(secret="another-secret").access_key == "alice"
    await guard.users.set_disabled("alice", True)
    with pytest.raises(Unauthorized):
        guard.enter(secret="another-secret")
    await guard.users.set_disabled("alice", False)
    guard.enter(secret="another-secret")
    await guard.users.remove("alice")
    with pytest.raises(Unauthorized):
        guard.enter(secret="another-secret")


async def test_what_is_remembered_is_bounded(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_flow, "VERIFIED_MAX", 10)
    for second in range(100):
        guard.enter(date_time=f"20250101T00{second // 60:02}{second % 60:02}Z")
    assert len(guard.access._verified) <= 10


async def test_a_server_without_an_admin_does_not_start(broker: RunningBroker) -> None:
    access = Access(broker.broker.engine.reader, broker.clock, Rules(auth=True))
    users = Users(broker.broker.engine.writer, broker.broker.engine.reader, access)
    with pytest.raises(Unauthorized, match="POPMQ_ADMIN_ACCESS_KEY"):
        await access.start()
    await users.add("alice", SECRET, is_admin=False)
    with pytest.raises(Unauthorized, match="popmq acl user add NAME --admin"):
        await access.start()


async def test_the_last_admin_stays(guard: Guard) -> None:
    with pytest.raises(BadRequest, match="last admin"):
        await guard.users.remove("root")
    with pytest.raises(BadRequest, match="last admin"):
        await guard.users.set_disabled("root", True)
    assert guard.enter("root").is_admin


async def test_the_configured_admin_is_made_once(broker: RunningBroker) -> None:
    async with guarded(broker) as guard:
        await guard.users.rotate("root", "another-secret")
        assert not await guard.users.ensure_admin("root", SECRET)
        assert guard.enter("root", "another-secret").is_admin
        assert await guard.users.ensure_admin("root", "another-secret")


@pytest.mark.parametrize(
    ("date_time", "is_let_in"),
    [
        ("20250101T000000Z", True),  # the clock's own now
        ("20241231T235930Z", True),
        ("20241231T235900Z", True),
        ("20241231T235859Z", False),
        ("20240101T000000Z", False),
        ("20250101T000100Z", True),
        ("20250101T000101Z", False),  # ahead: it would be good for a long time
        ("20250101T080000Z", False),  # a client east of here that signs its local time
        ("2025-01-01T01:00:00+01:00", True),
        ("2025-01-01T00:00:00+01:00", False),
        ("2024-12-31T23:00:00.000Z", False),
    ],
)
async def test_old_signatures_are_refused_where_that_is_asked_for(
    broker: RunningBroker, date_time: str, is_let_in: bool
) -> None:
    async with guarded(broker, max_age_ms=60_000) as guard:
        if is_let_in:
            assert guard.enter("root", date_time=date_time).access_key == "root"
            return
        with pytest.raises(Unauthorized, match="at most 60000 ms"):
            guard.enter("root", date_time=date_time)


@pytest.mark.parametrize("date_time", ["yesterday", "99999999T999999Z", "\u0664"])
async def test_where_age_counts_a_date_must_be_one(broker: RunningBroker, date_time: str) -> None:
    async with guarded(broker, max_age_ms=60_000) as guard:
        with pytest.raises(Unauthorized, match=f"'{date_time}' cannot be read.*20250101T000000Z"):
            guard.enter("root", date_time=date_time)
    async with guarded(broker) as guard:
        assert guard.enter("root", date_time=date_time).access_key == "root"


async def test_a_signature_grows_old_among_those_remembered(broker: RunningBroker) -> None:
    async with guarded(broker, max_age_ms=60_000) as guard:
        guard.enter("root")
        await broker.advance(60_000)
        guard.enter("root")
        await broker.advance(1)
        with pytest.raises(Unauthorized, match="60001 ms ago"):
            guard.enter("root")


async def test_without_that_option_a_replay_is_not_noticed(guard: Guard, broker: RunningBroker) -> None:
    """The protocol signs the date alone: only TLS keeps a signature from being seen and sent again."""
    guard.enter()
    await broker.advance(365 * 86_400_000)
    guard.enter()


async def test_explain_names_what_decides(guard: Guard) -> None:
    allowed, verdict, reason = await guard.users.explain("alice", ORDERS)
    assert (allowed, verdict.policy) == (False, None)
    assert "allow it with: popmq acl policy add alice allow PUB topic:orders" in reason
    number = await guard.allow(ORDERS)
    allowed, verdict, reason = await guard.users.explain("alice", ORDERS)
    assert allowed
    assert verdict.policy is not None
    assert verdict.policy.policy_id == number
    _, _, reason = await guard.users.explain("root", ORDERS)
    assert reason == "user 'root' may PUB topic 'orders': admins may do everything"
    await guard.users.set_disabled("alice", True)
    allowed, _, reason = await guard.users.explain("alice", ORDERS)
    assert not allowed
    assert "popmq acl user enable alice" in reason
    with pytest.raises(NotFound, match="popmq acl user add nobody"):
        await guard.users.explain("nobody", ORDERS)


async def test_what_another_server_changed_is_known_within_seconds(either_broker: RunningBroker) -> None:
    async with guarded(either_broker, is_shared=True) as here, guarded(either_broker) as there:
        await there.users.add("alice", SECRET, is_admin=False)
        with pytest.raises(Unauthorized):
            here.enter()
        await either_broker.advance(access_flow.RELOAD_MS)
        await until(lambda: "alice" in here.access._users)
        assert here.enter().access_key == "alice"
        await there.users.rotate("alice", "another-secret")
        await here.access.reload()
        assert here.enter(secret="another-secret").access_key == "alice"


async def test_what_is_told_while_one_looks_is_looked_at_again(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with guarded(broker, is_shared=True) as guard:
        read, entered, slow = guard.access._reader.read, asyncio.Event(), asyncio.Event()

        async def late(look: Any) -> Any:
            found = await read(look)
            entered.set()
            await slow.wait()
            return found

        monkeypatch.setattr(guard.access._reader, "read", late)
        guard.access.reload_soon()
        await entered.wait()
        await broker.broker.engine.writer.submit(access_sql.CreateUser("alice", SECRET, False))
        guard.access.reload_soon()
        slow.set()
        await until(lambda: "alice" in guard.access._users)


async def test_a_server_that_asks_for_no_signature_looks_at_nothing(broker: RunningBroker) -> None:
    access = Access(broker.broker.engine.reader, broker.clock, is_shared=True)
    await access.start()
    access.reload_soon()
    assert access._task is None
    await access.close()


async def test_a_database_that_does_not_answer_changes_nothing(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with guarded(broker, is_shared=True) as guard:

        async def fail(_look: Any) -> None:
            raise StoreUnavailable

        monkeypatch.setattr(broker.broker.engine.reader, "read", fail)
        await broker.advance(access_flow.RELOAD_MS)
        await until(lambda: guard.access._task is not None and guard.access._task.done())
        assert guard.enter("root").is_admin
        monkeypatch.undo()
        await broker.broker.engine.writer.submit(access_sql.CreateUser("alice", SECRET, False))
        await broker.advance(access_flow.RELOAD_MS)
        await until(lambda: "alice" in guard.access._users)


async def test_what_was_read_first_is_not_taken_over_last(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    read, slow = guard.access._reader.read, asyncio.Event()

    async def late(look: Any) -> Any:
        found = await read(look)
        monkeypatch.undo()
        await slow.wait()
        return found

    monkeypatch.setattr(guard.access._reader, "read", late)
    first = asyncio.create_task(guard.access.reload())
    await asyncio.sleep(0)
    changing = asyncio.create_task(guard.users.rotate("alice", "another-secret"))
    await asyncio.sleep(0)
    slow.set()
    await asyncio.gather(first, changing)
    assert guard.enter(secret="another-secret").access_key == "alice"


async def test_a_call_costs_microseconds(guard: Guard) -> None:
    """What is signed once per second is verified once per second, and a verdict is looked up, not judged again."""
    await guard.allow(ORDERS)
    headers = signed("alice", SECRET)
    authorization, date_time = headers["authorization"], headers["x-mq-date-time"]

    def calls() -> float:
        started = time.thread_time()  # others on the machine do not count
        for _ in range(1_000):
            user = guard.access.authenticate(authorization, date_time)
            guard.access.check_current(user)
            guard.access.check(user, [(ORDERS,)])
        return (time.thread_time() - started) * 1_000

    cost_us = min(calls() for _ in range(20))
    print(f"authenticate and check: {cost_us:.2f} us")
    assert cost_us < 20
