"""What `popmq mirror` hands over in a second, and its own CPU: a backlog of one group without message groups.

The first tenth of the messages is not measured: the mirror starts meanwhile. RocketMQ flushes as it does by default.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.bench import Bench
from benchmarks.case import Case, Figures, Rounds, in_turns
from benchmarks.machine import cpu_seconds
from benchmarks.peer_cases import INSTALLED
from benchmarks.peers.rocketmq import ARTIFACTS, Home, Tables, registered
from benchmarks.peers.tools import Missing, Tools
from benchmarks.servers import Variant
from popclient import ClientConfig, Message
from popclient.aio import Producer
from popclient.mirror.routes import GroupFacts, TopicFacts
from popclient.mirror.side import Side
from popclient.mirror.sides import OtherPorts, open_side

POPMQ = str(Path(sys.executable).with_name("popmq"))
FIRST = "first"  # a topic that RocketMQ has at its start
QUEUES, ATTEMPTS = 8, 17
AT_ONCE = 1_000  # messages that are sent at the source
LOOK_S = 0.02
PATIENCE_S = 300.0


class At(NamedTuple):
    """A side. name_server: empty for PopMQ."""

    endpoint: str
    name_server: str = ""

    def words(self, side: str) -> list[str]:
        words = [f"--{side}", self.endpoint]
        return [*words, f"--{side}-name-server", self.name_server] if self.name_server else words

    @contextmanager
    def asked(self) -> Iterator[tuple[asyncio.Runner, Side]]:
        with asyncio.Runner() as runner:
            side = runner.run(open_side(ClientConfig(self.endpoint), OtherPorts("", self.name_server), "bench"))
            try:
                yield runner, side
            finally:
                runner.run(side.close())


def mirrors(bench: Bench) -> Rounds:
    with ExitStack() as running:
        sides = {
            name: At(running.enter_context(bench.alone(Variant(name, bench.new_url("sqlite", name)))).endpoint)
            for name in ("old", "new")
        }
        try:
            home = running.enter_context(_rocketmq(bench))
        except Missing as missing:
            skipped = {"skipped": str(missing)}
            return {"PopMQ to PopMQ": [_measured(bench, "orders", *sides.values())], "RocketMQ": [skipped]}
        rocketmq = At(home.address, home.name_server_address)
        ways = {
            "PopMQ to PopMQ": (sides["old"], sides["new"]),
            "PopMQ to RocketMQ": (sides["old"], rocketmq),
            "RocketMQ to PopMQ": (rocketmq, sides["new"]),
        }
        topics = {name: name.replace(" ", "-") for name in ways}
        return in_turns(
            bench, list(ways), lambda name, number: _measured(bench, f"{topics[name]}-{number}", *ways[name])
        )


def mirror_table(results: Mapping[str, Any]) -> str:
    """The results as text; empty if there are none."""
    return "\n".join(
        f"{name:20} {each['skipped']}"
        if "skipped" in each
        else f"{name:20} {each['median']:>8,.0f} msg/s, {each['cpu_us_per_message']:>6,.0f} µs of its CPU for each"
        for name, each in results.get("mirror", {}).get("variants", {}).items()
    )


@contextmanager
def _rocketmq(bench: Bench) -> Iterator[Home]:
    jars = Tools(INSTALLED.absolute()).maven("rocketmq", ARTIFACTS)
    with bench.folder("rocketmq") as folder:
        home = Home(jars, folder / "home", Tables({FIRST: {}}, {}))
        with home.name_server(), home.proxy():
            asyncio.run(registered(home.address, [FIRST]))
            yield home


def _measured(bench: Bench, topic: str, source: At, target: At) -> Figures:
    count, group = bench.plan.mirrored, f"{topic}-group"
    with source.asked() as (runner, side):
        runner.run(side.make_topic(TopicFacts(topic, ("NORMAL",), QUEUES)))
        runner.run(side.make_group(GroupFacts(group, ATTEMPTS), [topic]))
        runner.run(side.begin_at_first(group, topic))
        runner.run(_send(source.endpoint, topic, count, bench.plan.body_bytes))
    words = [*source.words("from"), *target.words("to"), "--topic", topic, "--group", group]
    with target.asked() as (runner, side):
        stored_in = side.topics_of_imports(group, [topic])[0]
        before = runner.run(side.stored(stored_in)) or 0
        with subprocess.Popen([POPMQ, "mirror", *words], stdout=-3, stderr=-3) as mirror:
            try:

                def stored() -> int:
                    return (runner.run(side.stored(stored_in)) or 0) - before

                first, begun, cpu_s = *_when(stored, count // 10), cpu_seconds(mirror.pid)
                last, ended = _when(stored, count)
                cpu_s = cpu_seconds(mirror.pid) - cpu_s
            finally:
                mirror.terminate()
    messages, taken = last - first, ended - begun
    return {"rate": messages / taken, "cpu_us_per_message": cpu_s * 1e6 / messages}


async def _send(endpoint: str, topic: str, count: int, body_bytes: int) -> None:
    body = bytes(body_bytes)
    async with Producer(ClientConfig(endpoint, request_timeout=30.0)) as producer:
        for begin in range(0, count, AT_ONCE):
            sent = await producer.send_many([Message(topic, body) for _ in range(min(AT_ONCE, count - begin))])
            sent.raise_for_failures()


def _when(stored: Callable[[], int], count: int) -> tuple[int, float]:
    """How many were stored when there were so many, and the time."""
    until = time.monotonic() + PATIENCE_S
    while (found := stored()) < count:
        if time.monotonic() > until:
            raise TimeoutError(f"{found:,} of {count:,} messages were stored after {PATIENCE_S:.0f} s")
        time.sleep(LOOK_S)
    return found, time.monotonic()


MIRROR_CASES = {"mirror": Case("popmq mirror: a backlog of one group", mirrors)}
