"""PopMQ in a Django project: real processes, killed between the commit and the send."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, inspect, make_url, text

from popclient import SimpleConsumer, sql
from popclient.admin import Admin
from popserver import EmbeddedBroker
from tests.support.waiting import soon

ROOT = Path(__file__).parents[3]
BEGINNING = """
import os, django
django.setup()
from django.db import transaction
from popclient.frameworks.django import enqueue, producer, send_on_commit
from tests.frameworks.django.shop.models import Order
"""


class Project:
    """tests/frameworks/django/shop with a database and a broker."""

    def __init__(self, database: dict[str, Any], popmq: dict[str, Any]) -> None:
        self.environment = os.environ | {
            "DJANGO_SETTINGS_MODULE": "tests.frameworks.django.shop.settings",
            "SHOP_DATABASE": json.dumps(database),
            "SHOP_POPMQ": json.dumps(popmq),
            "PYTHONUNBUFFERED": "1",
        }

    def run(self, code: str) -> subprocess.CompletedProcess[str]:
        """A program of the project."""
        return self._run("-c", BEGINNING + textwrap.dedent(code))

    def manage(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self._run("-m", "django", *words)

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    @contextmanager
    def managing(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        """A command that goes on until SIGTERM."""
        command = [sys.executable, "-m", "django", *words]
        process = subprocess.Popen(command, cwd=ROOT, env=self.environment, stdout=subprocess.PIPE, text=True)
        with process:
            try:
                yield process
                process.send_signal(signal.SIGTERM)
                assert process.wait(60) == 0
            finally:
                process.kill()


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database's URL, as SQLAlchemy has it."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shop.db'}"
    given = make_url(request.getfixturevalue("empty_postgres_url"))
    return given.set(drivername="postgresql+psycopg").render_as_string(hide_password=False)


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    made = create_engine(url)
    yield made
    made.dispose()


@pytest.fixture
def project(url: str, broker: EmbeddedBroker) -> Project:
    given = make_url(url)
    names = {"NAME": given.database, "USER": given.username, "PASSWORD": given.password, "PORT": given.port}
    host = given.host or given.query.get("host")
    database: dict[str, Any] = {"ENGINE": f"django.db.backends.{given.get_backend_name()[:10]}", "HOST": host, **names}
    if given.get_backend_name() == "sqlite":
        database["ENGINE"] += "3"
    made = Project({name: value for name, value in database.items() if value}, {"endpoints": broker.endpoint})
    done = made.manage("migrate", "--run-syncdb")
    assert done.returncode == 0, done.stderr
    return made


both = pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
sqlite = pytest.mark.parametrize("url", ["sqlite"], indirect=True)


def received(broker: EmbeddedBroker, count: int) -> list[str]:
    """The messages of the topic, which are that many."""
    with SimpleConsumer(broker.endpoint, "g", "orders", await_duration=5) as consumer:
        found = [message.text for _ in range(count) for message in consumer.receive(1)]
        assert consumer.receive(await_duration=0) == []
    return sorted(found)


@both
def test_a_message_is_sent_if_the_transaction_commits(project: Project, broker: EmbeddedBroker) -> None:
    done = project.run(
        """
        with transaction.atomic():
            Order.objects.create(number=1)
            send_on_commit("orders", "1", keys="order-1")
            enqueue("orders", "outbox-1")
        try:
            with transaction.atomic():
                Order.objects.create(number=2)
                send_on_commit("orders", "2")
                enqueue("orders", "outbox-2")
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        send_on_commit("orders", "at once")
        assert list(Order.objects.values_list("number", flat=True)) == [1]
        """
    )
    assert done.returncode == 0, done.stderr
    assert "moved 1 messages, 0 wait" in project.manage("popmq_relay", "--once").stdout
    assert received(broker, 3) == ["1", "at once", "outbox-1"]


@both
def test_a_crash_after_the_commit_loses_what_the_outbox_does_not_have(
    project: Project, broker: EmbeddedBroker, engine: Engine
) -> None:
    done = project.run(
        """
        with transaction.atomic():
            transaction.on_commit(lambda: os._exit(9))
            send_on_commit("orders", "lost")
            print(enqueue("orders", b"kept", tag="new", keys="42", properties={"a": "b"}, message_group="42"))
        """
    )
    assert done.returncode == 9, done.stderr
    with engine.connect() as conn:
        assert conn.execute(text("SELECT COUNT(*) FROM popmq_outbox")).scalar_one() == 1
    for _ in range(2):
        assert ", 0 wait" in project.manage("popmq_relay", "--once").stdout
    with SimpleConsumer(broker.endpoint, "g", "orders", await_duration=5) as consumer:
        [message] = consumer.receive()
    assert (message.text, message.tag, message.keys, message.message_group) == ("kept", "new", ("42",), "42")
    assert message.properties == {"a": "b"}
    assert message.message_id == done.stdout.strip()


@sqlite
def test_a_relay_that_goes_on(project: Project, broker: EmbeddedBroker) -> None:
    with project.managing("popmq_relay") as relay:
        assert relay.stdout is not None
        assert relay.stdout.readline() == "relaying from database 'default', 0 messages wait\n"
        project.run("[enqueue('orders', str(number)) for number in range(3)]")
        assert received(broker, 3) == ["0", "1", "2"]


@sqlite
def test_a_consumer_with_djangos_connections(project: Project, broker: EmbeddedBroker, engine: Engine) -> None:
    def numbers() -> list[int]:
        with engine.connect() as conn:
            return list(conn.execute(text("SELECT number FROM shop_order ORDER BY number")).scalars())

    listener = "tests.frameworks.django.shop.listeners.book"
    project.run("[send_on_commit('orders', str(number)) for number in range(3)]")
    with project.managing("popmq_consume", listener, "--group", "shop", "--topic", "orders", "--concurrency", "2"):
        soon(lambda: numbers() == [0, 1, 2])
        with Admin(broker.endpoint) as admin:
            soon(lambda: admin.list_holds("shop") == [])


@both
def test_the_table_is_the_one_that_the_relay_reads(project: Project, engine: Engine) -> None:
    told = {column.name: (column.nullable, column.primary_key) for column in sql.outbox.columns}
    keys = inspect(engine).get_pk_constraint("popmq_outbox")["constrained_columns"]
    columns = inspect(engine).get_columns("popmq_outbox")
    assert {each["name"]: (each["nullable"], each["name"] in keys) for each in columns} == told
    changes = project.manage("makemigrations", "--check", "--dry-run", "popmq")
    assert changes.returncode == 0, changes.stdout


@sqlite
@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("send_on_commit('orders', 'x', tagg='new')", "unexpected keyword argument 'tagg'"),
        ("enqueue('orders', 'x', priority=1, message_group='a')", "message_group and priority exclude each other"),
        ("enqueue('orders', 'x', lite_topic='a')", "lite_topic 'a' cannot be kept in an outbox"),
        ("send_on_commit('orders', 4)", "body is 4; it must be bytes or str"),
        ("enqueue('orders', 'x', tag='a|b')", "ILLEGAL_MESSAGE_TAG"),
        ("with transaction.atomic(): send_on_commit('orders', ''); print('at once')", "MESSAGE_BODY_EMPTY"),
    ],
)
def test_what_cannot_be_sent_is_refused_at_once(project: Project, code: str, words: str) -> None:
    done = project.run(code)
    assert words in done.stderr
    assert done.stdout == ""


@sqlite
def test_the_relay_counts_what_is_refused(project: Project, engine: Engine) -> None:
    row = {"topic": "orders", "message_id": "by hand", "written_at_ms": 0, "body": b"x", "tag": "a|b"}
    with engine.begin() as conn:
        conn.execute(sql.outbox.insert(), row)
    assert "moved 0 messages, 0 wait, 1 are refused: SELECT " in project.manage("popmq_relay", "--once").stdout


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"endpoint": "127.0.0.1:1"}, "POPMQ: ClientConfig.__init__() got an unexpected keyword argument 'endpoint'"),
        ({"request_timeout": 0}, "POPMQ: request_timeout is 0"),
        (["127.0.0.1:1"], "POPMQ is ['127.0.0.1:1']; it must be a dict"),
    ],
)
def test_wrong_settings_are_refused_at_the_start(settings: Any, words: str) -> None:
    done = Project({"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}, settings).manage("check")
    assert done.returncode != 0
    assert words in done.stderr


@sqlite
def test_commands_refuse_what_they_cannot_do(project: Project) -> None:
    consume = ("popmq_consume", "--group", "g", "--topic", "orders")
    assert "listener 'shop.nothing' cannot be loaded" in project.manage(*consume, "shop.nothing").stderr
    done = project.manage(*consume, "django.get_version", "--concurrency", "0")
    assert "CommandError: concurrency is 0" in done.stderr
    project.environment["SHOP_POPMQ"] = json.dumps({"endpoints": "127.0.0.1:1", "request_timeout": 1})
    assert "the outbox of database 'default' waits" in project.manage("popmq_relay", "--once").stderr
