"""popclient at a server that wants signed calls."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import popclient
import popclient.aio
from popclient._session import session as sessions
from popclient.admin import Admin
from popclient.config import ClientConfig
from popclient.errors import BadRequest, Forbidden, NotFound, TooManyRequests, Unauthorized
from popserver import EmbeddedBroker, embedded
from tests.support.scripted_server import until, until_in_thread

SECRET = "correct-horse"
ROOT_SECRET = "root-has-a-secret"


def config(broker: EmbeddedBroker, access_key: str = "alice", secret: str = SECRET) -> ClientConfig:
    return ClientConfig(broker.endpoint, access_key=access_key, access_secret=secret)


@pytest.fixture
def guarded() -> Iterator[EmbeddedBroker]:
    with embedded(auth=True, admin_access_key="root", admin_secret=ROOT_SECRET, min_invisible="1s") as broker:
        yield broker


@pytest.fixture
def admin(guarded: EmbeddedBroker) -> Iterator[Admin]:
    with Admin(config(guarded, "root", ROOT_SECRET)) as opened:
        opened.create_user("alice", SECRET)
        opened.add_policy("alice", "ALLOW", ["PUB", "SUB"], "TOPIC", "orders*")
        opened.add_policy("alice", "allow", ["SUB"], "GROUP", "billing")
        yield opened


def test_a_signed_message_goes_its_way(guarded: EmbeddedBroker, admin: Admin) -> None:
    with popclient.Producer(config(guarded)) as producer:
        producer.send(popclient.Message("orders", b"signed"))
    with popclient.SimpleConsumer(config(guarded), group="billing", topics="orders") as consumer:
        (message,) = consumer.receive()
        consumer.ack(message)
    (lag,) = admin.get_group("billing").lag
    assert (lag.ready, lag.inflight) == (0, 0)


async def test_the_asyncio_face_signs_as_well(guarded: EmbeddedBroker, admin: Admin) -> None:
    async with popclient.aio.Producer(config(guarded)) as producer:
        await producer.send(popclient.Message("orders", b"signed"))
        with pytest.raises(Forbidden, match="popmq acl policy add alice allow PUB topic:trains"):
            await producer.send(popclient.Message("trains", b"signed"))


@pytest.mark.usefixtures("admin")
@pytest.mark.parametrize(("access_key", "secret"), [("alice", "wrong-secret"), ("nobody", SECRET), ("", "")])
def test_wrong_keys_raise_unauthorized(guarded: EmbeddedBroker, access_key: str, secret: str) -> None:
    wrong = config(guarded, access_key, secret)
    with pytest.raises(Unauthorized) as refused, popclient.Producer(wrong) as producer:
        producer.send(popclient.Message("orders", b"unsigned"))
    assert (refused.value.code, refused.value.retryable) == (40100, False)
    assert not secret or secret not in str(refused.value)
    with (
        pytest.raises(Unauthorized),
        popclient.SimpleConsumer(wrong, group="billing", topics="orders") as consumer,
    ):
        consumer.receive()
    with Admin(wrong) as opened, pytest.raises(Unauthorized):
        opened.status()


@pytest.mark.usefixtures("admin")
def test_what_is_not_allowed_is_told(guarded: EmbeddedBroker) -> None:
    with popclient.Producer(config(guarded)) as producer, pytest.raises(Forbidden, match="topic:trains"):
        producer.send(popclient.Message("trains", b"signed"))
    with (
        pytest.raises(Forbidden, match="may not SUB group 'others'"),
        popclient.SimpleConsumer(config(guarded), group="others", topics="orders") as consumer,
    ):
        consumer.receive()
    with Admin(config(guarded)) as opened, pytest.raises(Forbidden, match="it is for admins"):
        opened.list_topics()


def run_in_thread(consumer: popclient.PushConsumer | popclient.QueuePushConsumer) -> Future[None]:
    """What `run` ends with."""
    ended: Future[None] = Future()

    def run() -> None:
        try:
            ended.set_result(consumer.run())
        except BaseException as error:  # noqa: BLE001  the test looks at it
            ended.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    until_in_thread(lambda: consumer.healthy)
    return ended


@pytest.mark.parametrize("kind", ["PushConsumer", "QueuePushConsumer"])
def test_a_push_consumer_whose_rights_are_withdrawn_ends_and_says_why(
    guarded: EmbeddedBroker, admin: Admin, kind: str
) -> None:
    with popclient.Producer(config(guarded)) as producer:
        producer.send(popclient.Message("orders", b"signed"))
    heard: list[object] = []
    consumer = getattr(popclient, kind)(config(guarded), "billing", "orders", heard.append)
    ended = run_in_thread(consumer)
    admin.add_policy("alice", "DENY", ["SUB"], "GROUP", "billing")
    with pytest.raises(Forbidden, match=r"alice.*group.*billing"):
        ended.result(30)
    assert not consumer.healthy


@pytest.mark.parametrize("kind", ["PushConsumer", "QueuePushConsumer"])
async def test_so_does_one_of_asyncio(guarded: EmbeddedBroker, admin: Admin, kind: str) -> None:
    async def listener(*_: object) -> None:
        """Never called."""

    consumer = getattr(popclient.aio, kind)(config(guarded), "billing", "orders", listener)
    running = asyncio.create_task(consumer.run())
    await until(lambda: consumer.healthy)
    await asyncio.to_thread(admin.add_policy, "alice", "DENY", ["SUB"], "GROUP", "billing")
    with pytest.raises(Forbidden, match=r"alice.*group.*billing"):
        await asyncio.wait_for(running, 30)


@pytest.mark.parametrize(
    ("kind", "deleted"), [("PushConsumer", "topic"), ("PushConsumer", "group"), ("QueuePushConsumer", "group")]
)
def test_a_consumer_whose_topic_or_group_is_deleted_ends_at_once_and_says_why(kind: str, deleted: str) -> None:
    with embedded(auto_create=False) as broker, Admin(broker.endpoint) as admin:
        admin.create_topic("orders")
        admin.create_group("billing")
        waiting = broker.app.broker
        heard: list[Any] = []
        ended = run_in_thread(getattr(popclient, kind)(broker.endpoint, "billing", "orders", heard.append))
        until_in_thread(lambda: waiting.engine.wakeups.parked or waiting.consuming.pulls.parked.count)
        began = time.monotonic()
        if deleted == "topic":
            admin.delete_topic("orders")
        else:
            admin.delete_group("billing")
        with pytest.raises(NotFound, match=r"(topic 'orders'|consumer group 'billing') does not exist"):
            ended.result(30)
        assert time.monotonic() - began < 10, "its poll would have ended"


def test_a_user_shut_out_and_let_in_again(
    guarded: EmbeddedBroker, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "REFUSED_PAUSE", 0.05)
    lost: list[Exception] = []
    with popclient.Producer(config(guarded), on_disconnect=lost.append) as producer:
        producer.send(popclient.Message("orders", b"one"))
        admin.disable_user("alice")
        until_in_thread(lambda: bool(lost))
        with pytest.raises(Unauthorized):
            producer.send(popclient.Message("orders", b"two"))
        admin.enable_user("alice")
        until_in_thread(lambda: producer.healthy)
        producer.send(popclient.Message("orders", b"three"))
    assert {view.body for view in admin.peek_messages("orders")} == {b"one", b"three"}


def test_the_administration_of_users(guarded: EmbeddedBroker, admin: Admin) -> None:
    made = admin.create_user("carol")
    assert len(made.secret) == 43
    assert made.secret not in repr(made)
    admin.add_policy("carol", "ALLOW", ["PUB"], "TOPIC", "orders")
    told = admin.explain_access("carol", "PUB", "TOPIC", "orders")
    assert told.allowed
    assert told.policy is not None
    assert (told.policy.effect, told.policy.actions, told.policy.pattern) == ("ALLOW", ("PUB",), "orders")
    with popclient.Producer(config(guarded, "carol", made.secret)) as producer:
        producer.send(popclient.Message("orders", b"hers"))
    rotated = admin.rotate_secret("carol")
    with pytest.raises(Unauthorized), popclient.Producer(config(guarded, "carol", made.secret)) as producer:
        producer.send(popclient.Message("orders", b"hers"))
    with popclient.Producer(config(guarded, "carol", rotated.secret)) as producer:
        producer.send(popclient.Message("orders", b"hers"))
    assert admin.remove_policy(told.policy.id) == told.policy
    assert not admin.explain_access("carol", "PUB", "TOPIC", "orders").allowed
    assert {user.access_key: user.is_admin for user in admin.list_users()} == {
        "alice": False,
        "carol": False,
        "root": True,
    }
    admin.delete_user("carol")
    with pytest.raises(NotFound):
        admin.rotate_secret("carol")
    with pytest.raises(BadRequest):
        admin.delete_user("root")


def test_two_servers_know_the_same_users(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said at one counts at the other as soon as it hears of it, long before it would look by itself."""
    monkeypatch.setattr("popserver.access.flow.RELOAD_MS", 3_600_000)
    root: dict[str, Any] = {"auth": True, "admin_access_key": "root", "admin_secret": ROOT_SECRET}
    with (
        embedded(postgres_url, **root) as one,
        embedded(postgres_url, **root) as other,
        Admin(config(one, "root", ROOT_SECRET)) as admin,
    ):

        def answer() -> str:
            with Admin(config(other)) as alice:
                try:
                    alice.status()
                except (Unauthorized, Forbidden) as refusal:
                    return refusal.name
                return "OK"

        assert answer() == "UNAUTHORIZED"
        admin.create_user("alice", SECRET)
        until_in_thread(lambda: answer() == "FORBIDDEN")
        admin.disable_user("alice")
        until_in_thread(lambda: answer() == "UNAUTHORIZED")


def test_a_database_that_others_can_read_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for mode, is_warned in ((0o644, True), (0o600, False)):
        file = tmp_path / f"{mode:o}.db"
        file.touch(mode)
        file.chmod(mode)
        with embedded(file, auth=True, admin_access_key="root", admin_secret=ROOT_SECRET):
            assert ("other users may read its file" in "".join(capsys.readouterr())) is is_warned


def test_a_quota_is_told(guarded: EmbeddedBroker) -> None:
    with embedded(manual_clock=True, max_send_rate=1) as broker, popclient.Producer(broker.endpoint) as producer:
        producer.send(popclient.Message("orders", b"one"))
        with pytest.raises(TooManyRequests, match=r"has used up its 1 messages per second; try again in \d+ ms"):
            producer.send(popclient.Message("orders", b"two"))
        broker.clock.advance("1s")
        producer.send(popclient.Message("orders", b"three"))
