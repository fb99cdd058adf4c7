"""What README.md and docs/ tell a user to type works."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import takewhile
from pathlib import Path

import pytest

from examples.flights.processes import server
from popclient import Producer, SimpleConsumer
from popclient.admin import Admin
from popclient.cli import main as popmq
from popserver.config import Config
from tests.spark.filled import fill

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
FIRST_PAGES = README + (ROOT / "docs" / "tour.md").read_text()
OPTIONS = (ROOT / "docs" / "options.md").read_text()
MANAGING = (ROOT / "docs" / "managing.md").read_text()
FIRST_ADDRESS = "127.0.0.1:8081"


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    with server(tmp_path / "popmq.db", tmp_path / "server.log") as served:
        yield served.endpoint


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def block_with(word: str) -> str:
    """The Python block of the README or the tour that contains the word."""
    [found] = [block for block in blocks(FIRST_PAGES, "python") if word in block]
    return found


def run(tmp_path: Path, code: str, *arguments: str) -> str:
    script = tmp_path / "test_readme_block.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, *arguments, str(script)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_send_fail_be_tried_again(endpoint: str, tmp_path: Path) -> None:
    code = block_with("invisible_duration=2").replace(FIRST_ADDRESS, endpoint)
    assert run(tmp_path, code).splitlines() == ["attempt 1: one espresso", "attempt 2: one espresso"]


def test_or_let_them_come_to_you(endpoint: str, tmp_path: Path) -> None:
    with Producer(endpoint) as producer, Admin(endpoint) as admin:
        admin.create_group("kitchen", retry_intervals=[0.1])
        producer.send("orders", "one espresso")
    script = tmp_path / "kitchen.py"
    script.write_text(block_with("PushConsumer").replace(FIRST_ADDRESS, endpoint))
    with subprocess.Popen([sys.executable, "-u", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "attempt 2: one espresso\n"
        process.terminate()
        assert process.wait(300) == 0


def test_or_read_whole_queues(endpoint: str, tmp_path: Path) -> None:
    with Producer(endpoint) as producer:
        producer.send("orders", "one espresso")
    code = block_with("PullConsumer").replace(FIRST_ADDRESS, endpoint).replace("timeout=5", "timeout=1")
    assert run(tmp_path, code) == "['one espresso']\n"
    assert run(tmp_path, code) == ""


def test_in_order_later_together(endpoint: str, tmp_path: Path) -> None:
    code = block_with("producer.transaction").replace(FIRST_ADDRESS, endpoint)
    assert run(tmp_path, code) == "['12.50']\n"
    with SimpleConsumer(endpoint, "till", {"tables": "*", "reminders": "*"}) as consumer:
        assert [each.text for each in consumer.receive()] == ["opened", "paid", "closed"]


def test_lite_topics(endpoint: str, tmp_path: Path) -> None:
    code = block_with("LiteSimpleConsumer").replace(FIRST_ADDRESS, endpoint)
    assert run(tmp_path, code).splitlines() == ["agent-42 hello, agent-42", "agent-43 hello, agent-43"]


def test_official_client(endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with Producer(endpoint) as producer:
        producer.send("orders", "one espresso", tag="coffee")
    code = block_with("ClientConfiguration").replace(FIRST_ADDRESS, endpoint)
    assert run(tmp_path, code) == "one espresso\n"


@pytest.mark.slow
@pytest.mark.usefixtures("java")
def test_dead_letters_in_spark(tmp_path: Path) -> None:
    fill(f"sqlite:///{tmp_path / 'popmq.db'}", 30)
    code = block_with("spark.read.format").replace('"barista"', '"radar"')
    assert "| hotels|" in run(tmp_path, code)


@pytest.mark.user("U39")
@pytest.mark.usefixtures("java")
def test_topics_in_spark(endpoint: str, tmp_path: Path) -> None:
    stream = block_with("spark.readStream").replace(FIRST_ADDRESS, endpoint)
    send = f"""
from popclient import Producer
with Producer("{endpoint}") as producer:
    producer.send("orders", "one espresso", tag="coffee")
"""
    count = "print('in the lake:', spark.read.parquet('lake/orders').count())\n"
    said = run(tmp_path, (send + stream + count) * 2)
    assert [line for line in said.splitlines() if "lake" in line] == ["in the lake: 1", "in the lake: 2"]
    with SimpleConsumer(endpoint, "waiter", "drinks") as waiter:
        back = [message for _ in range(2) for message in waiter.receive(await_duration=5)]
    assert sorted(message.text for message in back) == [f'{{"tag":"coffee","count":{count}}}' for count in (1, 2)]


def shell(tmp_path: Path, script: str, **environment: str) -> subprocess.Popen[str]:
    """A block as it stands, typed into a shell where `popmq` is this checkout's."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("POPMQ_", "ROCKETMQ_"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.Popen(
        ["sh", "-ec", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        env={**inherited, "PATH": path, **environment},
        start_new_session=True,
    )


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def sh_block_with(word: str) -> str:
    [found] = [block for block in blocks(FIRST_PAGES, "sh") if word in block]
    return found


@contextmanager
def serving(tmp_path: Path, script: str) -> Iterator[None]:
    """The server that a block starts, once it is ready."""
    with shell(tmp_path, script) as process:
        try:
            assert process.stdout is not None
            said = list(takewhile(lambda line: not line.startswith("popserver ready"), process.stdout))
            assert process.poll() is None, said
            yield
        finally:
            os.killpg(process.pid, signal.SIGTERM)


def test_another_port(tmp_path: Path) -> None:
    serve, export = sh_block_with("--port 9000").replace("9000", str(free_port())).splitlines()
    with serving(tmp_path, serve):
        done = shell(tmp_path, f"{export}\npopmq status")
        assert export.split()[1].split("=")[1] in done.communicate(timeout=120)[0]
        program = "from popclient import Producer\nwith Producer() as producer: producer.send('orders', 'x')"
        done = shell(tmp_path, f'{export}\n{shlex.quote(sys.executable)} -c "{program}"')
        assert (done.communicate(timeout=120)[0], done.returncode) == ("", 0)
        done = shell(tmp_path, f"{export}\npopmq status", POPMQ_ENDPOINT="127.0.0.1:1")
        assert "no answer from 127.0.0.1:1:" in done.communicate(timeout=120)[0]


def test_users(tmp_path: Path) -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    serve = sh_block_with("popmq serve --auth").replace("--auth", f"--auth --port {endpoint.rpartition(':')[2]}")
    with serving(tmp_path, serve):
        done = shell(tmp_path, sh_block_with("acl user add"), POPMQ_ENDPOINT=endpoint)
        said, _ = done.communicate(timeout=300)
        assert done.returncode == 0, said
        assert said.splitlines()[-1].startswith("user 'shop' may SUB group 'kitchen': ")
        code = block_with("access_secret").replace(FIRST_ADDRESS, endpoint)
        assert run(tmp_path, code) == "['one espresso']\n"


def test_in_your_tests(tmp_path: Path) -> None:
    assert "1 passed" in run(tmp_path, block_with("pop_clock"), "-m", "pytest", "-q", "-p", "no:cacheprovider")


def test_the_tests_of_testing(tmp_path: Path) -> None:
    first, *others = blocks((ROOT / "docs" / "testing.md").read_text(), "python")
    paths = [tmp_path / f"test_{number}.py" for number, _ in enumerate(others)]
    for path, program in zip(paths, others, strict=True):
        path.write_text(program)
    said = run(tmp_path, first, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, paths))
    assert f"{len(paths) + 1} passed" in said


def test_the_sql(endpoint: str, tmp_path: Path) -> None:
    with Producer(endpoint) as producer, SimpleConsumer(endpoint, "barista", "orders") as consumer:
        sent = producer.send("orders", "one espresso")
        [_] = consumer.receive()
        rows = shown_by_sqlite(tmp_path / "popmq.db")
    assert rows == [f"{sent.message_id}|barista|INFLIGHT|1"]
    told = [line for line in README.splitlines() if line.startswith("01") and "|" in line]
    assert len(told) == 3
    assert all(re.fullmatch(r"01[0-9A-F]{32}\|\w+\|[A-Z]+\|\d*", row) for row in [*rows, *told])


def shown_by_sqlite(path: Path) -> list[str]:
    """What README's query answers, written as the command sqlite3 writes it."""
    [query] = re.findall(r'sqlite3 popmq.db "(.*?)"', README)
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as conn:
        found = conn.execute(query).fetchall()
    return ["|".join("" if value is None else str(value) for value in row) for row in found]


def test_commands_of_managing(endpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    # Those that need no users and no TLS; they have tests of their own.
    sections = [part for part in MANAGING.split("\n## ") if part.startswith(("Topics and groups", "Searching"))]
    lines = [line for part in sections for block in blocks(part, "sh") for line in block.splitlines()]
    assert len(lines) >= 6
    for line in lines:
        words = line.partition("#")[0].split()[1:]
        status = popmq(["--endpoint", endpoint, *words])
        # There is no message and no client of that name; the words themselves are right.
        assert status == (4 if {"MESSAGE_ID", "CLIENT_ID"} & set(words) else 0), capsys.readouterr()


def test_every_setting_is_in_options() -> None:
    told = dict(re.findall(r"^\|.*?`POPMQ_\w+` \| `(\w+)` \|(.*?)\|", OPTIONS, re.MULTILINE))
    assert set(told) == set(Config.model_fields)
    for name, field in Config.model_fields.items():
        if isinstance(field.default, str) or name == "port":
            assert told[name].strip() == (f"`{field.default}`" if field.default != "" else "")


def test_readme_is_short() -> None:
    assert len(README.splitlines()) <= 200
