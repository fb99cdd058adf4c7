"""What users read when something is wrong stays short, and an interrupted loop ends as Python's own loops do."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import pytest

from popclient import BadRequest, Message, Producer, SimpleConsumer
from popserver import embedded

BIG = b"y" * (4 << 20)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"properties": {"a": BIG}}, r"property 'a' is b'y+'… \(4,194,304\); the value of a property is a str"),
        ({"properties": {BIG: "a"}}, r"the name of property b'y+'… \(4,194,304\) is no str"),
        ({"properties": BIG}, r"properties is b'y+'… \(4,194,304\); give a mapping"),
    ],
)
def test_a_wrong_argument_is_shown_by_its_beginning(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words) as raised:
        Message("orders", "x", **fields)
    assert len(str(raised.value)) < 300


def test_words_about_wrong_messages() -> None:
    with embedded() as broker, Producer(broker.endpoint) as producer:
        with pytest.raises(TypeError, match=r"body is \[.*it must be bytes or str") as raised:
            producer.send("orders", [BIG])  # type: ignore[call-overload]
        assert len(str(raised.value)) < 300
        with pytest.raises(BadRequest, match="the message's body is empty; send at least one byte"):
            producer.send("orders", "")
        with SimpleConsumer(broker.endpoint, "readers", "orders") as consumer:
            with pytest.raises(TypeError, match=r"not 'yyy.*…$") as raised:
                consumer.ack([BIG.decode()])  # type: ignore[list-item]
            assert len(str(raised.value)) < 200


def test_without_file_locks_the_client_is_imported_and_says_what_it_cannot_do() -> None:
    """As on Windows: only progress in a local file needs them."""
    code = """
import sys
sys.modules["fcntl"] = None
import asyncio, tempfile, pathlib
import popclient, popclient.aio, popclient.admin
from popclient._progress.local import LocalFileOffsetStore
try:
    asyncio.run(LocalFileOffsetStore("a", "readers", pathlib.Path(tempfile.mkdtemp())).load())
except popclient.PreconditionFailed as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "this system has no file locks of POSIX" in done.stdout


LOOPS = {
    "iteration": "consumer = SimpleConsumer(endpoint, 'readers', 'orders')\nstep = lambda: next(iter(consumer))",
    "receive": "consumer = SimpleConsumer(endpoint, 'readers', 'orders')\nstep = consumer.receive",
    "poll": "consumer = PullConsumer(endpoint, 'pullers')\nconsumer.subscribe('orders')\nstep = consumer.poll",
}


@pytest.mark.parametrize("loop", LOOPS)
def test_an_interrupted_loop_closes_its_consumer(loop: str) -> None:
    """Ctrl-C raises KeyboardInterrupt out of the call, and the block then ends the session within its time."""
    code = f"""
import sys
from popclient import PullConsumer, SimpleConsumer
endpoint = sys.argv[1]
{LOOPS[loop]}
try:
    with consumer:
        print("waits", flush=True)
        while True:
            step()
except KeyboardInterrupt:
    print("interrupted")
"""
    with embedded() as broker:
        with Producer(broker.endpoint) as producer:
            producer.send("orders", "one")
        words = [sys.executable, "-c", code, broker.endpoint]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "waits\n"
            process.send_signal(signal.SIGINT)
            out, errors = process.communicate(timeout=60)
    assert (out, errors, process.returncode) == ("interrupted\n", "", 0)
