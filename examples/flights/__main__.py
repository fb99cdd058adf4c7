"""The story, step by step."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager, ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from examples.flights.cancellations import Cancellations
from examples.flights.data import TOPIC, airlines, flights
from examples.flights.groups import AGAIN_S, ARRIVALS, MAX_ATTEMPTS, RADAR
from examples.flights.history import course_of, flight_that_failed
from examples.flights.pictures import Mark, draw_course, draw_flight
from examples.flights.processes import Server, ServerFailed, child, kill, server, stopped
from examples.flights.proof import prove, sql
from examples.flights.screen import Screen
from examples.flights.sending import Sending
from examples.flights.watching import Database, Lag, looking_at
from popclient.admin import Admin
from popclient.errors import PopError

CONSUMERS = 3
QUEUES = 8
WORK_S = 0.1  # how long a handler works on a flight; 0 for the whole year
LOOK_S = 0.1
IN_ITS_HANDS = 8  # the consumer that is killed holds at least this many messages
STUCK_S = 60.0


class Stuck(Exception):
    """No message has changed its state for a minute."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.flights", description=__doc__)
    parser.add_argument("--all", action="store_true", help="send the whole year, 336,776 flights")
    parser.add_argument("--serve", action="store_true", help="keep the server and its console running until Ctrl-C")
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="folder for the results (demo-out)")
    arguments = parser.parse_args()
    demo = Demo(Screen(), _cleared(arguments.out.absolute()), whole_year=arguments.all)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it ends its processes then, too
    try:
        return 0 if demo.run(serve=arguments.serve) else 1
    except (ServerFailed, Stuck, PopError) as failure:
        demo.screen.failed(str(failure))
        return 1
    except KeyboardInterrupt:
        demo.screen.failed("interrupted")
        return 130


class Demo:
    """One run. All its files are in the folder `out`."""

    def __init__(self, screen: Screen, out: Path, *, whole_year: bool) -> None:
        self.screen = screen
        self.out = out
        self.database = out / "popmq.db"
        self.parquet = out / "dead_letters.parquet"
        self.whole_year = whole_year
        self.work_s = 0.0 if whole_year else WORK_S
        self.total = sum(1 for _ in flights(whole_year=whole_year))
        self.marks: list[Mark] = []

    def run(self, *, serve: bool) -> bool:
        """Whether the proof holds. `serve`: the server runs on until somebody ends it."""
        with ExitStack() as stack:
            self.screen.step("popmq serve: one process, one port, one SQLite file")
            served = stack.enter_context(server(self.database, self.out / "server.log"))
            endpoint = served.endpoint
            self.screen.say(served.ready)
            self.screen.say(f"look on while it runs: {served.console}")
            looking = stack.enter_context(looking_at(self.database))
            spark = stack.enter_context(self._start_spark())

            self.screen.step(f"A topic of {QUEUES} queues; groups '{ARRIVALS}' and '{RADAR}'")
            _create(endpoint)
            self.screen.say(f"'{ARRIVALS}' tries a flight {MAX_ATTEMPTS} times; both keep their history")

            self.screen.step(f"{self.total:,} flights, a message each, to {CONSUMERS} consumers and an official client")
            self._consume_all(endpoint, looking)

            self.screen.step("The dead letters in Spark")
            has_spark = self._report(spark)

            self.screen.step("The proof, from the database alone")
            holds = self._prove(looking)

            if has_spark:
                self.screen.step("The cancelled flights, repaired in Spark and sent back")
                self._send_back(spark, endpoint, looking)

            self.screen.step("Two pictures, and the console")
            flight = self._draw(endpoint, looking)
            if serve:
                self._serve(served, flight)
            else:
                self.screen.say("the console on these flights: make demo ARGS=--serve")
            return holds

    def _start_spark(self) -> AbstractContextManager[subprocess.Popen[str]]:
        arguments = (f"sqlite:///{self.database}", str(self.parquet))
        return child("examples.flights.spark_report", *arguments, log=self.out / "spark.log")

    def _consume_all(self, endpoint: str, looking: Database) -> None:
        with ExitStack() as stack:
            log = self.out / "consumers.log"
            workers = [
                stack.enter_context(child("examples.flights.consumer", endpoint, str(self.work_s), log=log))
                for _ in range(CONSUMERS)
            ]
            # Its client writes a log to the user's home folder, so it gets a separate one here.
            stack.enter_context(child("examples.flights.radar", endpoint, log=self.out / "radar.log", home=self.out))
            client_ids = [_client_id(worker) for worker in workers]
            victim = Victim(workers[0], client_ids[0])
            sending = Sending(endpoint, flights(whole_year=self.whole_year))
            sending.start()
            with self.screen.watching(self.total):
                self._until_all_ended(looking, sending, victim)
            if victim.killed is not None:
                self.marks.append(victim.killed)
            else:
                self.screen.note(f"no consumer was killed: it never held {IN_ITS_HANDS} flights when it was looked at")

    def _until_all_ended(self, looking: Database, sending: Sending, victim: Victim) -> None:
        """Show the states in the database, and kill a consumer, until all messages have ended in both groups."""
        moved_at, before = time.monotonic(), (0, Lag(), Lag())
        while True:
            arrivals, seen = looking.lag(ARRIVALS), looking.lag(RADAR)
            self.screen.show(sending.stored, {ARRIVALS: arrivals, RADAR: seen})
            if sending.failure is not None:
                raise sending.failure
            if arrivals.committed > self.total // 4:
                victim.meet_its_end(looking, self.screen)
            # One official client needs too long for the whole year: the demo stops it earlier.
            if arrivals.is_through(self.total) and (self.whole_year or seen.is_through(self.total)):
                return
            now = (sending.stored, arrivals, seen)
            if now != before:
                moved_at, before = time.monotonic(), now
            elif time.monotonic() - moved_at > STUCK_S:
                raise Stuck(f"nothing has moved for {STUCK_S:.0f} s: {sending.stored} sent, {arrivals}, {seen}")
            time.sleep(LOOK_S)

    def _report(self, spark: subprocess.Popen[str]) -> bool:
        """Whether Spark is installed for the report."""
        assert spark.stdout is not None
        with self.screen.waiting("Spark reads the dead letters"):
            said = spark.stdout.readline().strip()
            report = _ask(spark, "") if said == "ready" else json.loads(said or "{}")
        if has_spark := "counts" in report:
            self.screen.cancellations(Cancellations.of(report), airlines(), self.parquet)
        else:
            self.screen.say(f"left out: {report.get('missing', 'Spark has failed; see spark.log')}")
        return has_spark

    def _send_back(self, spark: subprocess.Popen[str], endpoint: str, looking: Database) -> None:
        """Wait until all redriven messages have been received."""
        with self.screen.waiting("Spark sorts, repairs and sends back"):
            report = _ask(spark, endpoint)
            if "redriven" not in report:
                raise Stuck("Spark has failed; see spark.log")
            with child("examples.flights.consumer", endpoint, "0.0", log=self.out / "consumers.log"):
                began = time.monotonic()
                while looking.taken() < report["redriven"]:
                    if time.monotonic() - began > STUCK_S:
                        raise Stuck(f"{looking.taken()} of {report['redriven']} flights that went back were taken")
                    time.sleep(LOOK_S)
        self.screen.sent_back(report["classes"], report["redriven"], looking.taken())

    def _draw(self, endpoint: str, looking: Database) -> str:
        """The message id of the flight that is drawn."""
        flight, states = self.out / "flight.svg", self.out / "states.svg"
        states.write_text(draw_course(course_of(looking), self.marks), encoding="utf-8")
        message_id = flight_that_failed(looking)
        with Admin(endpoint) as admin:
            flight.write_text(draw_flight(admin.get_message(message_id), datetime.now(UTC)), encoding="utf-8")
        self.screen.pictures(flight, states)
        return message_id

    def _serve(self, served: Server, flight: str) -> None:
        """Wait until Ctrl-C, or until the server is ended by somebody else."""
        self.screen.console(served.console, flight)
        try:
            status = served.process.wait()
        except KeyboardInterrupt:
            self.screen.say("ended")
            return
        if status:
            raise ServerFailed(f"popmq serve ended with status {status}; see server.log")

    def _prove(self, looking: Database) -> bool:
        (self.out / "proof.sql").write_text(sql())
        proofs = prove(looking)
        holds = len(proofs) == 2 and all(
            each.holds(self.total, all_read=each.consumer_group == ARRIVALS or not self.whole_year) for each in proofs
        )
        self.screen.proof(proofs, holds, self.out)
        return holds


class Victim:
    """A consumer that is killed in the middle of its work."""

    def __init__(self, process: subprocess.Popen[str], client_id: str) -> None:
        self._process = process
        self._client_id = client_id
        self.killed: Mark | None = None
        self._killed_at = 0.0
        self._told = False  # whether the end of its holds has been shown

    def meet_its_end(self, looking: Database, screen: Screen) -> None:
        """Called regularly: kill the consumer when it holds enough messages, then show when its holds have ended."""
        if self.killed is None:
            # A stopped process cannot ack between this query and the kill.
            with stopped(self._process):
                holding = looking.held_by(self._client_id)
                if holding >= IN_ITS_HANDS:
                    kill(self._process)
                    self._killed_at = time.monotonic()
                    self.killed = Mark(round(time.time() * 1_000), "kill -9 of a consumer")
                    screen.note(f"kill -9 of consumer process {self._process.pid}, in the middle of its work")
                    screen.note(f"it has {holding} flights in its hands")
        elif not self._told and not looking.held_by(self._client_id):
            after_s = time.monotonic() - self._killed_at
            screen.note(f"{after_s:.1f} s later its holds have ended, and the others get its flights")
            self._told = True


def _ask(spark: subprocess.Popen[str], line: str) -> dict[str, Any]:
    assert spark.stdin is not None
    assert spark.stdout is not None
    print(line, file=spark.stdin, flush=True)
    answer: dict[str, Any] = json.loads(spark.stdout.readline() or "{}")
    return answer


def _create(endpoint: str) -> None:
    with Admin(endpoint) as admin:
        admin.create_topic(TOPIC, queue_count=QUEUES)
        admin.create_group(ARRIVALS, max_attempts=MAX_ATTEMPTS, retry_intervals=[AGAIN_S], history="all")
        admin.create_group(RADAR, history="all")


def _client_id(worker: subprocess.Popen[str]) -> str:
    """Wait until a consumer prints its client id, which it does when it is connected."""
    assert worker.stdout is not None
    if name := worker.stdout.readline().strip():
        return name
    raise Stuck(f"a consumer process ended with status {worker.wait()}; see consumers.log")


def _cleared(out: Path) -> Path:
    """The folder, without the files of an earlier run."""
    out.mkdir(parents=True, exist_ok=True)
    for pattern in ("popmq.db*", "*.log", "*.svg", "proof.sql"):
        for old in out.glob(pattern):
            old.unlink()
    shutil.rmtree(out / "dead_letters.parquet", ignore_errors=True)
    return out


if __name__ == "__main__":
    sys.exit(main())
