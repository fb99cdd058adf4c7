"""A default installation, `pip install '.[server]'` and `popmq serve`, with our client and the official Java client.

The same run measures this installation on a plaintext port, and one without uvloop. Named installations
(`--popmq NAME=PATH`) are measured instead of it, each on the default port and in plaintext.
"""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from benchmarks.bench import Bench
from benchmarks.case import Case, Figures, Rounds
from benchmarks.generator import Generator
from benchmarks.peers.processes import free_port
from benchmarks.servers import Server, Variant

ROOT = Path(__file__).parent.parent
JAVA = Path(__file__).parent / "java"
PAUSE_S = 0.2
DELAY_S = 0.3
DEADLINE_S = 60
FIGURES = {
    "wake_p50": "ms",
    "wake_p99": "ms",
    "due_p50": "ms",
    "due_p99": "ms",
    "receives": "msg/s",
    "sends": "msg/s",
    "java_wake_p50": "ms",
    "java_wake_p99": "ms",
    "java_due_p50": "ms",
    "java_due_p99": "ms",
    "java_receives": "msg/s",
    "java_sends": "msg/s",
    "ready_s": "s",
    "open_after_kill_s": "s",
    "first_answer_s": "s",
}


class Way(NamedTuple):
    """An installation and how its server is started."""

    name: str
    popmq: Path
    plaintext: bool = False

    def variant(self, url: str, port: int) -> Variant:
        options = ("--port", str(port), *(("--tls", "plaintext") if self.plaintext else ()))
        return Variant(self.name, url, options, popmq=self.popmq)


def installed(bench: Bench) -> Rounds:
    with ExitStack() as running:
        ways = list(_ways(bench, running))
        java = java_program(bench, running)
        found: Rounds = {way.name: [] for way in ways}
        for number in range(bench.plan.rounds):
            for way in ways:
                bench.say(f"round {number + 1} of {bench.plan.rounds}: {way.name}")
                found[way.name].append(_measured(bench, way, java))
        return found


def _ways(bench: Bench, running: ExitStack) -> Iterator[Way]:
    given = bench.given_popmqs or _made(bench, running)
    for name, popmq in given.items():
        yield Way(name, popmq)
        yield Way(f"{name} plaintext", popmq, plaintext=True)


def _made(bench: Bench, running: ExitStack) -> dict[str, Path]:
    """New virtual environments with only what pip installs."""
    made: dict[str, Path] = {}
    for name in ("default", "no uvloop"):
        bench.say(f"installing {name}")
        folder = running.enter_context(bench.folder(f"installed_{len(made)}"))
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", f"{ROOT}[server]"], check=True)
        if name == "no uvloop":
            subprocess.run([*pip, "uninstall", "--yes", "uvloop"], check=True)
        made[name] = folder / "bin" / "popmq"
    return made


def java_program(bench: Bench, running: ExitStack) -> list[str] | None:
    """The command of the official Java client, without a program's name; None without Java, or without Maven."""
    java, maven = shutil.which("java"), shutil.which("mvn")
    if java is None or maven is None or shutil.which("javac") is None:
        return None
    bench.say("building the official Java client's program")
    folder = running.enter_context(bench.folder("java"))
    shutil.copytree(JAVA, folder, dirs_exist_ok=True)
    quiet = [maven, "--batch-mode", "--quiet", "--file", str(folder / "pom.xml")]
    goals = ["compile", "dependency:build-classpath", f"-Dmdep.outputFile={folder / 'classpath'}"]
    subprocess.run([*quiet, *goals], check=True, stdout=sys.stderr)
    classpath = f"{folder / 'target' / 'classes'}:{(folder / 'classpath').read_text().strip()}"
    return [java, "-cp", classpath, f"-Duser.home={folder}"]


def _measured(bench: Bench, way: Way, java: list[str] | None) -> Figures:
    plan, url, port = bench.plan, bench.new_url("sqlite", "installed"), free_port()
    with bench.alone(way.variant(url, port)) as server:
        figures: Figures = {"ready_s": server.ready_s}
        with Generator(server, None) as load:
            figures |= _by_own_client(bench, load)
        if java is not None:
            seconds = [str(plan.installed_seconds), str(plan.installed_wakes)]
            tls = str(not way.plaintext).lower()
            said = subprocess.run([*java, "Bench", server.endpoint, tls, *seconds], check=True, stdout=subprocess.PIPE)
            told = json.loads(said.stdout.splitlines()[-1])
            figures |= {f"java_{name}": value for name, value in told.items()}
        return figures | _after_a_kill(bench, way, url, port, server)


def _by_own_client(bench: Bench, load: Generator) -> Figures:
    plan = bench.plan
    wake = load.run("client.wake", topic="bench-wake", count=plan.installed_wakes, pause_s=PAUSE_S)
    due = load.run("client.wake", topic="bench-due", count=plan.installed_wakes, pause_s=PAUSE_S, delay_s=DELAY_S)
    window = {"warm_up": 0.3, "seconds": plan.installed_seconds, "callers": 1}
    load.run("client.stock", topic="bench-stock", count=plan.installed_stock, body_bytes=plan.body_bytes)
    receives = load.run(
        "client.receive",
        topic="bench-stock",
        group="bench-one",
        stock=plan.installed_stock,
        groups=1 + int(plan.installed_seconds * 6_000 / plan.installed_stock),
        ack_each=True,
        **window,
    )
    sends = load.run("client.send", topic="bench-send", together=True, body_bytes=plan.body_bytes, **window)
    return {
        "wake_p50": wake["p50"],
        "wake_p99": wake["p99"],
        "due_p50": due["p50"],
        "due_p99": due["p99"],
        "receives": receives["rate"],
        "sends": sends["rate"],
        "server_busy": sends["server_busy"],
    }


def _after_a_kill(bench: Bench, way: Way, url: str, port: int, server: Server) -> Figures:
    """The time from the start after a SIGKILL until the port is open, and until a new client has its answer."""
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    begun = time.perf_counter()
    starting = subprocess.Popen(
        [str(way.popmq), "--json", "serve", "--database-url", url, *way.variant(url, port).options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for_port(port)
        opened = time.perf_counter()
        with grpc.insecure_channel(f"127.0.0.1:{port}", options=(("grpc.use_local_subchannel_pool", 1),)) as channel:
            grpc.channel_ready_future(channel).result(DEADLINE_S)
        answered = time.perf_counter()
    finally:
        starting.terminate()
        starting.wait()
    return {"open_after_kill_s": opened - begun, "first_answer_s": answered - opened}


def _wait_for_port(port: int) -> None:
    until = time.monotonic() + DEADLINE_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.002)


def installed_table(results: Mapping[str, Any]) -> str:
    """A line per figure, a column per installation, and its ratio to its own plaintext port."""
    if "installed" not in results:
        return ""
    ways = {name: _medians(each["rounds"]) for name, each in results["installed"]["variants"].items()}
    lines = [f"{'installed':18} {'unit':6}" + "".join(f" {name:>22}" for name in ways)]
    for figure, unit in FIGURES.items():
        if all(figure in each for each in ways.values()):
            cells = [_cell(ways, name, figure) for name in ways]
            lines.append(f"{figure:18} {unit:6}" + "".join(f" {cell:>22}" for cell in cells))
    return "\n".join([*lines, "in brackets: of the same installation's plaintext port"])


def _medians(rounds: Sequence[Figures]) -> dict[str, float]:
    return {figure: statistics.median(each[figure] for each in rounds) for figure in FIGURES if figure in rounds[0]}


def _cell(ways: Mapping[str, Mapping[str, float]], name: str, figure: str) -> str:
    got = ways[name][figure]
    plain = ways.get(f"{name} plaintext")
    written = f"{got:,.0f}" if got >= 100 else f"{got:.3g}"
    return written if plain is None else f"{written} ({got / plain[figure]:.2f})"


JAVA_THREADS = 64


def java_threads(bench: Bench) -> Rounds:
    """The official Java client on many threads, in plaintext and with TLS; named installations in turns."""
    popmqs: Mapping[str, Path | None] = bench.given_popmqs or {"this": None}
    found: Rounds = {}
    with ExitStack() as running:
        java = java_program(bench, running)
        if java is None:
            bench.say("no Java, or no Maven: not measured")
            return found
        for number in range(bench.plan.rounds):
            for (name, popmq), mode in itertools.product(popmqs.items(), ("plaintext", "TLS")):
                bench.say(f"round {number + 1} of {bench.plan.rounds}: {name}, {mode}")
                options = ("--tls", "permissive" if mode == "TLS" else "plaintext")
                variant = Variant(f"{name} {mode}", bench.new_url("sqlite", "java"), options, popmq=popmq)
                found.setdefault(variant.name, []).append(_by_java(bench, variant, java, mode == "TLS"))
    return found


def _by_java(bench: Bench, variant: Variant, java: list[str], over_tls: bool) -> Figures:
    with bench.alone(variant) as server:
        given = [str(over_tls).lower(), str(JAVA_THREADS), str(bench.plan.seconds), str(server.pid)]
        said = subprocess.run([*java, "Load", server.endpoint, *given], check=True, stdout=subprocess.PIPE)
        told: Figures = json.loads(said.stdout.splitlines()[-1])
        return told


INSTALLED_CASES = {
    "java_threads": Case(
        "official Java client, 64 threads: server CPU of a single send", java_threads, key="send_us", unit="us"
    ),
    "installed": Case(
        "as pip installs it: milliseconds to wake a waiting receive", installed, key="wake_p50", unit="ms"
    ),
}
