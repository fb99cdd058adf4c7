"""The synchronous clients are made from the asyncio ones."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import popclient
from popclient import PullConsumer, PushConsumer, QueuePushConsumer, aio
from popclient._engine.flow import QueueLimits
from popclient._engine.options import PushOptions
from popclient._pull.options import PullOptions
from popclient._queue_push.options import QueueOptions
from popclient.admin import Admin

SCRIPT = Path(__file__).parents[2] / "scripts" / "unasync.py"
NAMES = ("Producer", "PullConsumer", "PushConsumer", "QueuePushConsumer", "SimpleConsumer", "Transaction")
CLIENTS: list[tuple[type, type]] = [
    *((getattr(popclient, name), getattr(aio, name)) for name in NAMES),
    (Admin, aio.Admin),
]
PLAIN = [plain for plain, _ in CLIENTS]


def test_they_are_up_to_date() -> None:
    checked = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize(("plain", "asynchronous"), CLIENTS, ids=[plain.__name__ for plain in PLAIN])
def test_both_have_the_same_public_names_and_parameters(plain: type, asynchronous: type) -> None:
    methods = public_methods(plain)
    assert methods == public_methods(asynchronous)
    for method in (*methods, "__init__"):
        parameters = [list(inspect.signature(getattr(each, method)).parameters) for each in (plain, asynchronous)]
        assert parameters[0] == parameters[1], method


@pytest.mark.parametrize(("plain", "asynchronous"), CLIENTS, ids=[plain.__name__ for plain in PLAIN])
def test_each_is_at_home_where_users_import_it(plain: type, asynchronous: type) -> None:
    assert plain.__module__ == ("popclient.admin" if plain is Admin else "popclient")
    assert asynchronous.__module__ == "popclient.aio"


@pytest.mark.parametrize("plain", PLAIN, ids=lambda plain: plain.__name__)
def test_documentation_speaks_of_one_of_them(plain: type) -> None:
    documented = [plain, *(getattr(plain, name) for name in public_methods(plain))]
    words = " ".join(inspect.getdoc(each) or "" for each in documented).replace("`", " ").split()
    assert {"async", "await", "coroutine", "task"}.isdisjoint(words)


@pytest.mark.parametrize(
    ("client", "options"),
    [(PushConsumer, {PushOptions}), (PullConsumer, {PullOptions}), (QueuePushConsumer, {QueueOptions, QueueLimits})],
)
def test_each_argument_of_a_consumer_is_an_option(client: type, options: set[type]) -> None:
    """Options are taken from a constructor's arguments by their names, so none may be lost by another name."""
    told = set(inspect.signature(client).parameters) - {"endpoints", "on_disconnect", "on_reconnect"}
    assert told == {each.name for kind in options for each in dataclasses.fields(kind)} - {"flow"}


def public_methods(client: type) -> list[str]:
    return sorted(name for name in dir(client) if callable(getattr(client, name)) and not name.startswith("_"))
