"""gevent and eventlet replace the threads of a process, uvloop the event loop; asyncio has a debug mode.

The process of the tests imports none of them: eventlet would warn at each fork of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

import popserver

GEVENT = "from gevent import monkey; monkey.patch_all({})"
UVLOOP = "import uvloop; uvloop.install()"
EVENTLET = "import eventlet; eventlet.monkey_patch({})"
KEPT = "thread=False, select=False, subprocess=False, os=False, signal=False"
SYNCHRONOUS = """
from popclient import Producer, SimpleConsumer
with Producer(endpoint) as producer, SimpleConsumer(endpoint, "g", "t") as consumer:
    producer.send("t", "x")
    (message,) = consumer.receive(await_duration=20)
    consumer.ack(message)
"""
ASYNCHRONOUS = """
import asyncio
from popclient import aio
async def main():
    async with aio.Producer(endpoint) as producer, aio.SimpleConsumer(endpoint, "g", "t") as consumer:
        await producer.send("t", "x")
        (message,) = await consumer.receive(await_duration=20)
        await consumer.ack(message)
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with popserver.embedded() as broker:
        yield broker.endpoint


def run(endpoint: str, beginning: str, program: str, **env: str) -> tuple[int, str]:
    code = f"import sys; endpoint = sys.argv[1]\n{beginning}\n{program}"
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, endpoint],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | env,
    )
    return ended.returncode, ended.stderr.strip()


@pytest.mark.parametrize("program", [SYNCHRONOUS, ASYNCHRONOUS], ids=["sync", "asyncio"])
@pytest.mark.parametrize(("patch", "library"), [(GEVENT, "gevent"), (EVENTLET, "eventlet")], ids=["gevent", "eventlet"])
def test_replaced_threads_are_refused_at_once(endpoint: str, patch: str, library: str, program: str) -> None:
    status, said = run(endpoint, patch.format(""), program)
    assert status == 1
    assert said.splitlines()[-1].startswith(f"RuntimeError: {library} has replaced threads")


@pytest.mark.parametrize(
    "patch", [GEVENT.format(KEPT), EVENTLET.format("thread=False"), UVLOOP], ids=["gevent", "eventlet", "uvloop"]
)
@pytest.mark.parametrize("program", [SYNCHRONOUS, ASYNCHRONOUS], ids=["sync", "asyncio"])
def test_what_the_refusal_advises_works(endpoint: str, patch: str, program: str) -> None:
    assert run(endpoint, patch, program) == (0, "")


@pytest.mark.parametrize("program", [SYNCHRONOUS, ASYNCHRONOUS], ids=["sync", "asyncio"])
def test_the_debug_mode_of_asyncio(endpoint: str, program: str) -> None:
    status, said = run(endpoint, "", program, PYTHONASYNCIODEBUG="1")
    assert status == 0
    assert "Traceback" not in said
    assert "never awaited" not in said
