"""PopMQ beside other brokers: the workloads, the table and the pages; and each server, where it can be had."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import run
from benchmarks.machine import Cores, FamilyCpu, family_cpu_seconds, family_memory_bytes, family_of
from benchmarks.peer_cases import WORKLOADS
from benchmarks.peers import loads, pages, tools
from benchmarks.peers.known import known
from benchmarks.peers.peer import BATCH_SIZE, Received
from benchmarks.peers.table import measured, peers_table
from benchmarks.peers.tools import Missing, Tools
from benchmarks.plan import QUICK

TINY = QUICK._replace(
    seconds=0.3,
    warm_up=0.1,
    peers_stock=2_000,
    peers_stock_seconds=1.0,
    peers_latency_seconds=0.5,
    peers_compiling_seconds=1.0,
)

# Its child works for 0.2 s of CPU time. At "end", the child is killed.
ENDING = """
import os, signal, sys, time
signal.signal(signal.SIGCHLD, getattr(signal, sys.argv[1]))
ready, working = os.pipe()
child = os.fork()
if not child:
    while time.process_time() < 0.2:
        pass
    os.write(working, b"1")
    signal.pause()
os.read(ready, 1)
print("worked", flush=True)
sys.stdin.readline()
os.kill(child, signal.SIGKILL)
try:
    os.waitpid(child, 0)
except ChildProcessError:  # the system has taken its end away, because nobody wants it
    pass
print("ended", flush=True)
sys.stdin.readline()
"""


class Fake:
    """A broker in memory: it is its own client and consumer. `most` is how many of its calls ran at once."""

    def __init__(self) -> None:
        self.stored: deque[bytes] = deque()
        self.sent: list[int] = []
        self.acked = 0
        self.most = self._now = 0

    async def prepare(self, topic: str) -> None:
        raise NotImplementedError

    async def send(self, topic: str, body: bytes) -> None:
        await self.send_batch(topic, [body])

    async def send_batch(self, topic: str, bodies: Sequence[bytes]) -> None:
        self._now += 1
        self.most = max(self.most, self._now)
        await asyncio.sleep(0)
        self._now -= 1
        self.sent.append(len(bodies))
        self.stored.extend(bodies)

    @asynccontextmanager
    async def consumer(self, topic: str) -> AsyncIterator[Fake]:
        yield self

    async def receive(self) -> Received:
        await asyncio.sleep(0.001)
        got = [self.stored.popleft() for _ in range(min(BATCH_SIZE, len(self.stored)))]
        return Received(got, len(got))

    async def ack(self, received: Received) -> None:
        self.acked += received.handle


@pytest.fixture
def fake() -> Fake:
    return Fake()


def window(count: int, seconds: float = 60.0, cpu: Iterator[float] | None = None) -> loads.Window:
    return loads.Window(lambda: 0.0 if cpu is None else next(cpu), warm_up=0, seconds=seconds, count=count)


async def test_sends_end_at_their_number(fake: Fake) -> None:
    figures = await loads.send(fake, window(1_000), "topic", b"x", callers=8, batch=BATCH_SIZE)
    assert fake.most == 8
    assert set(fake.sent) == {BATCH_SIZE}
    # Each caller may have one more under way.
    assert 1_000 <= sum(fake.sent) <= 1_000 + 8 * BATCH_SIZE
    assert figures["rate"] > 0
    assert figures["p99"] >= figures["p50"] > 0


async def test_sends_end_at_their_time(fake: Fake) -> None:
    await loads.send(fake, window(10**9, seconds=0.05), "topic", b"x", callers=1, batch=1)
    assert sum(fake.sent) < 10**9


async def test_a_busy_machine_has_a_rate(fake: Fake) -> None:
    figures = await loads.send(fake, window(10**9, seconds=0), "topic", b"x", callers=1, batch=1)
    assert figures["rate"] > 0


async def test_there_is_something_to_receive(fake: Fake) -> None:
    assert await loads.fill(fake, "topic", b"x", count=10**9, seconds=0) >= loads.STOCK_MIN


async def test_the_cpu_of_the_window_counts(fake: Fake) -> None:
    # When the window is made, when it begins, when its warm-up is over; then at its end.
    spent = iter([0.0, 5.0, 5.0, 5.5])
    figures = await loads.send(fake, window(100, cpu=spent), "topic", b"x", callers=1, batch=1)
    assert figures["us"] == pytest.approx(0.5e6 / 100)


async def test_receives_leave_the_last_messages(fake: Fake) -> None:
    """No consumer waits for messages that another one holds."""
    stored = await loads.fill(fake, "topic", b"x", count=2_000, seconds=60)
    assert stored == sum(fake.sent) == len(fake.stored)
    await loads.receive(fake, window(10**9), "topic", stored, consumers=8)
    assert 0 < len(fake.stored) <= 8 * BATCH_SIZE
    assert fake.acked == stored - len(fake.stored)


async def test_a_failing_call_ends_the_load(fake: Fake) -> None:
    async def refuse(topic: str, body: bytes) -> None:
        raise ConnectionError("gone")

    fake.send = refuse  # type: ignore[method-assign]
    with pytest.raises(ConnectionError):
        await loads.send(fake, window(10), "topic", b"x", callers=1, batch=1)


async def test_a_delivery_is_timed_from_its_send(fake: Fake) -> None:
    figures = await loads.latency(fake, "topic", body_bytes=64, rate=200, seconds=0.1)
    assert len(fake.sent) == loads.FIRST + 20
    assert 0 < figures["p50"] <= figures["p99"]


def test_a_family_has_this_process() -> None:
    import os

    own = os.getpid()
    assert own in family_of(own)  # Linux gives out low numbers again: no order is sure
    assert family_cpu_seconds() > 0
    assert family_memory_bytes(own) > 2**20


@pytest.mark.parametrize("disposition", ["SIG_IGN", "SIG_DFL"])
def test_the_time_of_a_child_that_ends_is_not_negative(disposition: str) -> None:
    """As PySpark's daemon does, which ignores that its workers end: then their time is lost."""
    command = [sys.executable, "-c", ENDING, disposition]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        parent.stdout.readline()
        used, simply_s = FamilyCpu(parent.pid), family_cpu_seconds(parent.pid)
        parent.stdin.write("end\n")
        parent.stdin.flush()
        parent.stdout.readline()
        found, simply_s = used.seconds(), family_cpu_seconds(parent.pid) - simply_s
        parent.stdin.write("end\n")
    assert 0 <= found < 0.2
    assert (simply_s < -0.1) == (disposition == "SIG_IGN")


def test_what_cannot_be_had_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda command: None)
    installing = Tools(tmp_path)
    with pytest.raises(Missing, match="install no-such-server"):
        installing.debian("no-such-server", "usr/bin/no-such-server")
    with pytest.raises(Missing, match="install Go"):
        installing.go("example.com/server/v2@v2.0.0")
    with pytest.raises(Missing, match="Java 17 and Maven"):
        installing.maven("some", ["a:b:1"])
    monkeypatch.setattr("shutil.which", lambda command: command)
    monkeypatch.setattr(tools, "_run", _fails)
    for _ in range(2):
        with pytest.raises(Missing, match="Maven did not get a:b:1; it needs Maven Central"):
            installing.maven("some", ["a:b:1"])


def _fails(command: list[str]) -> None:
    raise subprocess.CalledProcessError(1, command)


def test_what_is_installed_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "_run", lambda *_: pytest.fail("nothing needs to be installed"))
    for file in ("debian/usr/bin/some-server", "go/server"):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).touch()
    assert Tools(tmp_path).debian("some", "usr/bin/some-*") == tmp_path / "debian"
    assert Tools(tmp_path).go("example.com/server/v2@v2.0.0") == tmp_path / "go" / "server"


def one_round(rate: float, p50: float, **facts: str) -> dict[str, Any]:
    told = {"version": "1.0", "client": "some 2.0", "sends": "on the disk", "acks": "not answered"} | facts
    figures = {"rate": rate, "us": 100.0, "p50": p50, "p99": 2 * p50}
    each = {f"{workload.name}_{name}": value for workload in WORKLOADS for name, value in figures.items()}
    return {**told, **each, "memory_mib": 50.0, "fsync_us": 300.0}


def results(**rounds: list[dict[str, Any]]) -> dict[str, Any]:
    variants = {
        name: own[0] | {"rounds": []} if "skipped" in own[0] else {"rounds": own} for name, own in rounds.items()
    }
    return {"cases": {"peers": {"variants": variants}}, "environment": {"cores": 2}, "plan": QUICK._asdict()}


RUN = results(
    ours=[one_round(100, 4.0), one_round(1_000, 4.0), one_round(1_000, 4.0)],
    quick=[one_round(200, 2.0), one_round(2_000, 2.0), one_round(1_000, 2.0)],
    slow=[one_round(50, 8.0), one_round(500, 8.0), one_round(500, 8.0)],
    absent=[{"skipped": "install it"}],
)


def test_ratios_are_of_the_same_round() -> None:
    ours, quick, slow, absent = measured(RUN["cases"])
    assert (ours.of["send_1_rate"], quick.of["send_1_rate"], slow.of["send_1_rate"]) == (1.0, 2.0, 0.5)
    assert quick.figures["send_1_rate"] == 1_000, "the median of the rounds, beside which 2.0 would be 500"
    assert absent.skipped == "install it"


def test_the_table_has_every_server_and_workload() -> None:
    text = peers_table(RUN["cases"])
    assert all(workload.title in text for workload in WORKLOADS)
    assert "skipped: install it" in text
    assert "(2.00)" in text
    assert peers_table({}) == ""


def test_pages_say_who_is_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    written = [tmp_path / "docs/benchmarks.md", tmp_path / "README.md"]
    for path in written:
        path.write_text(f"before\n{pages.BEGIN}old\n{pages.END}after\n")
    (tmp_path / "bench.json").write_text(json.dumps(RUN))
    for _ in range(2):
        pages.main([str(tmp_path / "bench.json")])
        for path in written:
            text = path.read_text()
            assert text.startswith(f"before\n{pages.BEGIN}")
            assert text.endswith(f"{pages.END}after\n")
            assert "old" not in text
            assert "single sends, 1 at once: quick 2.0 ×" in text
            assert "send to delivery: quick 2.0 ×" in text
    assert "| quick | 1.0 | some 2.0 | on the disk | not answered |" in written[0].read_text()
    assert "Not measured: absent; install it." in written[0].read_text()


def test_a_page_without_a_place_is_refused() -> None:
    with pytest.raises(ValueError, match=r"README\.md has no place"):
        pages.between("text\n", "figures", "README.md")


def test_the_pages_have_a_place() -> None:
    for page in pages.PAGES:
        assert pages.BEGIN in pages.between((pages.ROOT / page).read_text(), "figures\n", page)


def test_runs_are_put_together() -> None:
    both = pages.together([RUN, RUN])
    assert [len(each["rounds"]) for each in both["cases"]["peers"]["variants"].values()] == [6, 6, 6, 0]
    assert len(RUN["cases"]["peers"]["variants"]["ours"]["rounds"]) == 3


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_every_peer_is_measured_where_it_can_be_had(tmp_path: Path) -> None:
    result = run(["peers"], TINY, [], tmp_path, Cores(pin=False))
    servers = measured(result["cases"])
    assert [each.name for each in servers] == list(known())
    assert not servers[0].skipped, "PopMQ can always be had"
    for server in servers:
        if not server.skipped:
            assert all(value > 0 for name, value in server.figures.items() if not name.endswith("_us")), server
            assert server.facts["version"][0].isdigit()
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"
