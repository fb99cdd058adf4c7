"""The synchronous clients are made from the asyncio ones."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import popclient
from popclient import aio

SCRIPT = Path(__file__).parents[2] / "scripts" / "unasync.py"
CLIENTS = ("Producer", "PullConsumer", "PushConsumer", "QueuePushConsumer", "SimpleConsumer", "Transaction")


def test_they_are_up_to_date() -> None:
    checked = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("name", CLIENTS)
def test_both_have_the_same_public_names_and_parameters(name: str) -> None:
    plain, asynchronous = getattr(popclient, name), getattr(aio, name)
    assert (plain.__module__, asynchronous.__module__) == ("popclient", "popclient.aio")
    methods = public_methods(plain)
    assert methods == public_methods(asynchronous)
    for method in (*methods, "__init__"):
        parameters = [list(inspect.signature(getattr(each, method)).parameters) for each in (plain, asynchronous)]
        assert parameters[0] == parameters[1], method


@pytest.mark.parametrize("name", CLIENTS)
def test_documentation_speaks_of_one_of_them(name: str) -> None:
    plain = getattr(popclient, name)
    words = " ".join(inspect.getdoc(each) or "" for each in (plain, *vars(plain).values()) if callable(each))
    assert not {"async", "await", "coroutine", "task", "tasks"}.intersection(words.replace("`", " ").split())


def public_methods(client: type) -> list[str]:
    return sorted(name for name, found in vars(client).items() if callable(found) and not name.startswith("_"))
