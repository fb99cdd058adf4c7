"""No secret and no content in anything the server or the command line says.

Every secret and every content of this run bears one mark. A server that logs all it can is used rightly, wrongly, and
broken under; then the mark must be nowhere but where somebody asked for that very thing.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from sqlalchemy.engine import make_url

from popproto.v1 import admin_pb2 as admin
from popproto.v1.admin_pb2_grpc import AdminStub
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popproto.v2.service_pb2_grpc import MessagingServiceStub
from popserver import embedded
from popserver.database.database import Database
from popserver.model.errors import PopError
from tests.support.postgres import PostgresServer, _execute, fresh_database
from tests.support.server_process import served
from tests.support.shell import Shell, installed
from tests.support.signing import signed
from tests.support.wire_server import GROUP, TOPIC, a_message, receive_request

MARK = "7f3a9c51"
ROOT_SECRET = f"root-{MARK}"
SECRET = f"alice-{MARK}"
WRONG = f"wrong-{MARK}"
BODY = f"body-{MARK}"
VALUE = f"value-{MARK}"
DATABASE_PASSWORD = f"database-{MARK}"


class Run:
    """One server, two users, and everything that was said."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._messaging = MessagingServiceStub(channel)
        self._admin = AdminStub(channel)
        self._channel = channel
        self.said: list[str] = []

    def call(self, method: str, request: Any, access_key: str = "alice", secret: str = SECRET, **headers: str) -> Any:
        """One call of either service; what comes back is remembered, but for the messages of a receive."""
        metadata = tuple(({"x-mq-client-id": "c1"} | signed(access_key, secret) | headers).items())
        stub = self._messaging if hasattr(self._messaging, method) else self._admin
        answer = getattr(stub, method)(request, metadata=metadata)
        if method == "ReceiveMessage":
            frames = list(answer)
            self.said += [str(frame.status) for frame in frames]
            return [frame.message for frame in frames if frame.HasField("message")]
        self.said.append(str(answer))
        return answer

    def as_root(self, method: str, **fields: Any) -> Any:
        return self.call(method, getattr(admin, f"{method}Request")(**fields), "root", ROOT_SECRET)

    def garbage(self, method: str) -> None:
        metadata = tuple(({"x-mq-client-id": "c1"} | signed("alice", SECRET)).items())
        call: Any = self._channel.unary_unary(f"/apache.rocketmq.v2.MessagingService/{method}")
        self.said.append(repr(call(b"\xff\xff" + BODY.encode(), metadata=metadata)))

    def telemetry(self, command: wire.TelemetryCommand, secret: str = SECRET) -> None:
        metadata = tuple(({"x-mq-client-id": "c1"} | signed("alice", secret)).items())
        stream = self._messaging.Telemetry(iter([command]), metadata=metadata)
        self.said.append(str(next(stream)))
        stream.cancel()


@pytest.fixture(params=["sqlite", "postgres"])
def secret_url(request: pytest.FixtureRequest, sqlite_url: str) -> Iterator[tuple[str, PostgresServer | None]]:
    """A database's URL, on Postgres with two passwords in it."""
    if request.param == "sqlite":
        yield sqlite_url, None
        return
    postgres: PostgresServer = request.getfixturevalue("postgres")
    with fresh_database(postgres) as url:
        with_password = make_url(url).set(password=DATABASE_PASSWORD)
        if with_password.username is None:
            with_password = with_password.set(username="postgres")
        yield with_password.render_as_string(hide_password=False), postgres


def a_secret_message(message_id: str | None = None, **system: Any) -> pb.Message:
    properties = {"card": VALUE, f"name-{MARK}": "x"}
    message_id = message_id or uuid.uuid4().hex
    return a_message(message_id, body=BODY.encode(), user_properties=properties, **system)


async def test_a_server_that_logs_all_it_can_tells_no_secret(
    secret_url: tuple[str, PostgresServer | None],
) -> None:
    url, postgres = secret_url
    environment = ("env", "POPMQ_ADMIN_ACCESS_KEY=root", f"POPMQ_ADMIN_SECRET={ROOT_SECRET}")
    options = ("--auth", "--log-level", "debug", "--log-format", "json", "--max-send-rate", "1000")
    async with served(url, *options, under=environment) as server:
        with opened(server.endpoint) as run:
            await asyncio.to_thread(use, run)
            await asyncio.to_thread(misuse, run)
            if postgres is not None:
                await asyncio.to_thread(break_under, run, url)
        assert await server.stop() == 0
    assert len(run.said) > 40
    assert postgres is None or "refused a statement" in "".join(run.said)
    assert_unmarked(log=server.stderr, answers="\n".join(run.said))


def assert_unmarked(**said: str) -> None:
    for where, text in said.items():
        lines = [line for line in text.splitlines() if MARK in line]
        assert not lines, (where, lines[:5])


@contextmanager
def opened(endpoint: str) -> Iterator[Run]:
    with grpc.insecure_channel(endpoint) as channel:
        yield Run(channel)


def use(run: Run) -> None:
    """What users and operators do."""
    run.as_root("CreateUser", access_key="alice", secret=SECRET)
    run.as_root("CreateUser", access_key="bob", secret=SECRET)
    for kind in ("TOPIC", "GROUP"):
        actions = ["PUB", "SUB"] if kind == "TOPIC" else ["SUB"]
        pattern = pb.Resource(name="*")
        run.as_root(
            "AddPolicy", access_key="alice", effect="ALLOW", actions=actions, resource_kind=kind, pattern=pattern
        )
    run.telemetry(wire.TelemetryCommand(settings=pb.Settings(client_type=pb.PRODUCER)))
    run.call("SendMessage", wire.SendMessageRequest(messages=[a_secret_message() for _ in range(3)]))
    first, second, third = run.call("ReceiveMessage", receive_request())
    entries = [wire.AckMessageEntry(receipt_handle=first.system_properties.receipt_handle)]
    run.call("AckMessage", wire.AckMessageRequest(group=GROUP, topic=TOPIC, entries=entries))
    run.call(
        "ForwardMessageToDeadLetterQueue",
        wire.ForwardMessageToDeadLetterQueueRequest(
            group=GROUP, topic=TOPIC, receipt_handle=second.system_properties.receipt_handle
        ),
    )
    run.call(
        "ChangeInvisibleDuration",
        wire.ChangeInvisibleDurationRequest(
            group=GROUP, topic=TOPIC, receipt_handle=third.system_properties.receipt_handle
        ),
    )
    for method in ("GetStatus", "ListTopics", "ListGroups", "ListUsers", "ListPolicies"):
        run.as_root(method)
    run.as_root("UpdateUser", access_key="bob", secret=f"bob-{MARK}")
    run.as_root("UpdateUser", access_key="bob", disabled=True)
    run.call("NotifyClientTermination", wire.NotifyClientTerminationRequest())


def misuse(run: Run) -> None:
    """Everything that is refused, with the mark wherever a caller can put it without asking to be shown it."""
    wrong = ("alice", WRONG), ("nobody", SECRET), ("bob", SECRET), ("root", WRONG), (SECRET, "alice")
    for access_key, secret in wrong:
        run.call("SendMessage", wire.SendMessageRequest(messages=[a_secret_message()]), access_key, secret)
        run.call("ListUsers", admin.ListUsersRequest(), access_key, secret)
        run.call("ReceiveMessage", receive_request(), access_key, secret)
    run.telemetry(wire.TelemetryCommand(settings=pb.Settings(client_type=pb.PRODUCER)), WRONG)
    for header in (f"Bearer {WRONG}", f"MQv2-HMAC-SHA1 Credential=alice, Signature={WRONG}", WRONG):
        run.call("QueryRoute", wire.QueryRouteRequest(topic=TOPIC), authorization=header)
    for message in (
        a_secret_message(tag="a|b"),
        a_secret_message(message_id=" "),
        a_secret_message(keys=["two words"]),
        a_secret_message(body_encoding=99),
        a_message("large", body=(BODY * 400_000).encode()),
        a_message("empty", body=b"", user_properties={"card": VALUE}),
        a_message("long value", user_properties={"card": VALUE * 10_000}),
        a_secret_message(topic=pb.Resource(name="no such name")),
        a_secret_message(topic=pb.Resource(name="%DLQ%counters")),
    ):
        run.call("SendMessage", wire.SendMessageRequest(messages=[message]))
    mixed = [a_secret_message(), a_secret_message(topic=pb.Resource(name="others"))]
    run.call("SendMessage", wire.SendMessageRequest(messages=mixed))
    run.call("SendMessage", wire.SendMessageRequest())
    for method in ("SendMessage", "AckMessage", "QueryRoute", "EndTransaction"):
        run.garbage(method)
    run.as_root("CreateUser", access_key="carol", secret=f"blank in {MARK}")
    run.as_root("CreateUser", access_key="carol", secret=MARK[:7])
    run.as_root("CreateUser", access_key="carol", secret=SECRET * 100)
    run.as_root("CreateUser", access_key="alice", secret=SECRET)
    run.as_root("UpdateUser", access_key="nobody", secret=SECRET)
    run.as_root("UpdateUser", access_key="alice", secret=SECRET, disabled=True)


def break_under(run: Run, url: str) -> None:
    """The database throws the server out, refuses statements, and complains of rows by showing them whole."""
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    out = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'popmq'"
    for breaks, mends in (
        (out, "SELECT 1"),
        ("ALTER TABLE message RENAME TO gone", "ALTER TABLE gone RENAME TO message"),
        ("ALTER TABLE acl_user RENAME TO gone", "ALTER TABLE gone RENAME TO acl_user"),
        (
            "ALTER TABLE message ADD CONSTRAINT odd CHECK (body IS NULL) NOT VALID",
            "ALTER TABLE message DROP CONSTRAINT odd",
        ),
        (
            "ALTER TABLE acl_user ADD CONSTRAINT odd CHECK (secret = '') NOT VALID",
            "ALTER TABLE acl_user DROP CONSTRAINT odd",
        ),
    ):
        _execute(plain, breaks)
        run.call("SendMessage", wire.SendMessageRequest(messages=[a_secret_message()]))
        run.as_root("GetStatus")
        run.as_root("CreateUser", access_key="frank", secret=SECRET)
        run.as_root("UpdateUser", access_key="alice", secret=SECRET)
        _execute(plain, mends)
        run.as_root("DeleteUser", access_key="frank")


def test_no_command_tells_a_secret(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, sqlite_url: str
) -> None:
    """But the one that makes it, once; and a body only where somebody asked for messages."""
    keys = {"POPMQ_ACCESS_KEY": "root", "POPMQ_ACCESS_SECRET": ROOT_SECRET, "NEW_SECRET": f"new-{MARK}"}
    wrong = keys | {"POPMQ_ACCESS_SECRET": WRONG}
    with embedded(sqlite_url, auth=True, admin_access_key="root", admin_secret=ROOT_SECRET) as broker:
        shell = Shell(broker.endpoint, capsys, monkeypatch, broker)
        for words, environment, status in (
            (("status",), keys, 0),
            (("--json", "status"), keys, 0),
            (("topic", "list"), wrong, 1),
            (("message", "send", "flights", BODY), wrong, 1),
            (("message", "send", "flights", BODY), keys, 0),
            (("message", "send", "flights", BODY, "--tag", "a|b"), keys, 1),
            (("acl", "user", "list"), keys, 0),
            (("--json", "acl", "user", "list"), keys, 0),
            (("acl", "user", "add", "dave", "--secret-from", "env:NEW_SECRET"), keys, 0),
            (("acl", "user", "add", "dave", "--secret-from", "env:NEW_SECRET"), keys, 1),
            (("acl", "user", "add", "erin", "--secret-from", SECRET), keys, 2),
            (("acl", "user", "rotate", "dave", "--yes", "--secret-from", "env:NEW_SECRET"), keys, 0),
            (("acl", "policy", "list"), keys, 0),
        ):
            for name, value in environment.items():
                monkeypatch.setenv(name, value)
            said = shell(*words)
            assert said.status == status, (words, said)
            assert_unmarked(out=said.out, err=said.err)
        assert MARK not in repr(broker) + repr(broker.app.config) + str(broker.app.config)


@pytest.mark.parametrize(
    "url",
    [
        f"postgres//popmq:{DATABASE_PASSWORD}@localhost/popmq",
        f"postgresql://popmq:{DATABASE_PASSWORD}@127.0.0.1:1/popmq?password={DATABASE_PASSWORD}",
        f"mysql://popmq:{DATABASE_PASSWORD}@127.0.0.1/popmq?password={DATABASE_PASSWORD}",
    ],
)
def test_a_database_that_cannot_be_opened_is_named_without_its_password(url: str) -> None:
    with pytest.raises(PopError) as refused:
        Database(url).connect_writer()
    assert_unmarked(sentence=refused.value.sentence)
    assert "127.0.0.1" in refused.value.sentence or "localhost" in refused.value.sentence


@pytest.mark.parametrize(
    ("words", "environment"),
    [
        (("--port", "99999"), {"POPMQ_ADMIN_ACCESS_KEY": "root", "POPMQ_ADMIN_SECRET": ROOT_SECRET}),
        ((), {"POPMQ_ADMIN_SECRET": ROOT_SECRET}),
        ((), {"POPMQ_ADMIN_ACCESS_KEY": "root", "POPMQ_ADMIN_SECRET": MARK[:7]}),
    ],
)
def test_a_start_that_fails_tells_no_secret(
    sqlite_url: str, words: tuple[str, ...], environment: dict[str, str]
) -> None:
    said = installed("serve", "--auth", "--database-url", sqlite_url, *words, **environment)
    assert said.status in {1, 2}
    assert MARK[:7] not in said.out + said.err
