"""The same programs at PopMQ and at a RocketMQ cluster: they do the same, or end with the name of what is missing."""

from __future__ import annotations

import fcntl
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from examples.flights.processes import server
from popclient import ClientConfig, MessageView, NotFound, Producer, SimpleConsumer
from popclient.spark import JavaMissing
from popclient.spark.session import java_home
from tests.interop.matrix import rocketmq
from tests.interop.matrix.same_programs import ENDPOINT, FOLDER, GROUPS, PROGRAMS, ROOT, TOPICS, Program
from tests.interop.matrix.stage import AWAIT_S
from tests.interop.seen import until
from tests.support.built_programs import do_without
from tests.support.documentation_pages import ADDRESS, environment, fits_in_any_order
from tests.support.rocketmq_cluster import cluster

PAGE = ROOT / "docs" / "same-program.md"
BEGIN, END = "<!-- The table: make test-same -->\n", "<!-- End of the table. -->\n"
POPMQ = "PopMQ"
SERVERS = (POPMQ, rocketmq.NAME)
RUNS, REFUSED = "runs", "refused"
PROGRAM_S = 300  # a program that takes longer hangs
TRIES = 10  # of a program that needs luck, which is one in two
# Spark waits 10 s for a worker that it has started. A busy machine may need longer.
NO_WORKER = "Python worker failed to connect back"
REFUSAL = re.compile(r"UnsupportedByServer: (.*)")
WITH_LITE = {"enableLmq": "true", "enableMultiDispatch": "true"}
SHORT_HOLDS = {"minInvisibleTimeMillsForRecv": 1_000}  # as popmq serve --min-invisible 1s

pytestmark = [
    pytest.mark.matrix,
    pytest.mark.timeout(1_800),
    pytest.mark.xdist_group(rocketmq.NAME),
    pytest.mark.row("O9"),
]


class Ended(NamedTuple):
    """How a program ended."""

    status: int
    said: str
    complained: str


@pytest.fixture(scope="module")
def rocketmq_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One cluster for all programs: it starts slowly."""
    folder = tmp_path_factory.mktemp("cluster")
    try:
        with cluster(folder, TOPICS, GROUPS, broker=WITH_LITE, proxy=SHORT_HOLDS) as theirs:
            yield theirs.endpoint
    except rocketmq.Missing as missing:
        do_without(str(missing))


@pytest.fixture
def endpoint(at: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Of the server of these SERVERS; of PopMQ each program has one of its own."""
    if at != POPMQ:
        yield request.getfixturevalue("rocketmq_endpoint")
        return
    with server(tmp_path / "popmq.db", tmp_path / "server.log") as ours:
        yield ours.endpoint


@pytest.mark.parametrize("at", SERVERS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_program(endpoint: str, name: str, at: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    program = PROGRAMS[name]
    if program.takes_java:
        _require_java()
    patient = ClientConfig(endpoint, request_timeout=30)
    for topic, group in program.drained:
        drain(patient, topic, group)
    with Producer(patient) as producer:
        for message in program.before:
            producer.send(message)
    if program.given_up[0]:
        give_up(patient, *program.given_up)
    for _ in range(TRIES):
        ended = run(program, endpoint, tmp_path)
        said = f"{ended.said}\n{ended.complained}"
        # The commands name no message and no group that is there.
        is_well = ended.status in ((0, 4) if program.is_command else (0,))
        if is_well and fits_in_any_order(program.shows, ended.said):
            break
        if not (at != POPMQ and program.luck) and NO_WORKER not in ended.complained:
            break
    if at == POPMQ or not program.refused:
        assert is_well, said
        assert fits_in_any_order(program.shows, ended.said), said
        outcome = f"{RUNS}: {program.luck}" if at != POPMQ and program.luck else RUNS
    else:
        reason = refusal_of(ended, endpoint)
        assert program.refused in reason, said
        assert ended.status != 0, said
        outcome = f"{REFUSED}: {reason}"
    if request.config.getoption("--page", default=False):
        note(name, at, outcome)


def _require_java() -> None:
    try:
        java_home()
    except JavaMissing as missing:
        do_without(f"spark: {missing}")


def drain(config: ClientConfig, topic: str, group: str) -> None:
    """Take away what other programs have left for the group."""
    with SimpleConsumer(config, group, topic, await_duration=AWAIT_S) as consumer:

        def is_empty() -> bool:
            try:
                received = consumer.receive(32, 60)
                consumer.ack(received)
            except NotFound:  # the topic is made on first use
                return True
            return not received

        until(is_empty, 120)


def give_up(config: ClientConfig, topic: str, group: str) -> None:
    """Make a dead letter of the group's next message."""
    with SimpleConsumer(config, group, topic, await_duration=AWAIT_S) as consumer:
        found: list[MessageView] = []
        until(lambda: bool(found) or bool(found.extend(consumer.receive(1, 60)) or found), 120)
        consumer.forward_to_dead_letter_queue(found[0], "not a number")


def run(program: Program, endpoint: str, folder: Path) -> Ended:
    """Run it as a user does, in a folder of its own, until it ends or has shown enough."""
    told = [word.replace(ENDPOINT, endpoint).replace(FOLDER, str(folder)) for word in program.words]
    if program.code:
        (folder / "program.py").write_text(program.code.replace(ADDRESS, endpoint))
        told = ["program.py"]
    command = ["sh", "-ec", *told] if program.is_command else [sys.executable, "-u", *told]
    where = ROOT if program.words and not program.is_command else folder
    with (folder / "stderr").open("w+") as complaints:
        started = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=complaints, text=True, cwd=where, env=environment(endpoint, folder)
        )
        shown = ""
        if program.lines and started.stdout is not None:
            shown = "".join(started.stdout.readline() for _ in range(program.lines))
            started.send_signal(signal.SIGTERM)
        try:
            rest, _ = started.communicate(timeout=PROGRAM_S)
        except subprocess.TimeoutExpired:
            started.kill()
            started.communicate()
            raise
        complaints.seek(0)
        return Ended(started.returncode, shown + rest, complaints.read())


def refusal_of(ended: Ended, endpoint: str) -> str:
    """What the program says that the server does not offer; "" if it says something else, or nothing."""
    found = REFUSAL.search(ended.complained) or re.search(r"popmq: (.*)", ended.complained)
    if found is None:
        return ""
    return re.sub(r"[\s|]+", " ", found[1]).replace(endpoint, "…").strip()


# ---- The page ----


def note(program: str, at: str, outcome: str) -> None:
    """Write the outcome into the table, whose other rows stay."""
    with PAGE.open("r+") as page:
        fcntl.flock(page, fcntl.LOCK_EX)
        text = page.read()
        before, rest = text.split(BEGIN)
        table, after = rest.split(END)
        outcomes = outcomes_of(table)
        outcomes[program, at] = outcome
        page.seek(0)
        page.write(f"{before}{BEGIN}{table_of(outcomes)}{END}{after}")
        page.truncate()


def outcomes_of(table: str) -> dict[tuple[str, str], str]:
    found: dict[tuple[str, str], str] = {}
    for line in table.splitlines()[3:]:
        if line.startswith("| "):
            program, ours, theirs, reason = (cell.strip() for cell in line.strip("|").split(" |"))
            found[program, POPMQ] = ours
            found[program, rocketmq.NAME] = f"{theirs}: {reason}" if reason else theirs
    return found


def table_of(outcomes: dict[tuple[str, str], str]) -> str:
    rows = ["", f"| Program | {POPMQ} | {rocketmq.NAME} | Why not |", "|---|---|---|---|"]
    for program in PROGRAMS:
        word, _, reason = outcomes.get((program, rocketmq.NAME), "").partition(": ")
        rows.append(f"| {program} | {outcomes.get((program, POPMQ), '')} | {word} | {reason} |")
    return "\n".join([*rows, "", ""])
