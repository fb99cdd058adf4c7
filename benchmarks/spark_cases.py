"""Cases of Spark: the cost of reading from a broker, compared with other sources of the same rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

from sqlalchemy.engine import make_url

from benchmarks.bench import Bench
from benchmarks.case import Figures, Rounds
from benchmarks.spark_filling import fill_dead_letters, fill_flights
from benchmarks.spark_load import DONE
from benchmarks.tcp_door import tcp_door
from examples.flights.data import TOPIC

JAR_VARIABLE: Final = "POPMQ_JDBC_JAR"
JAR: Final = "/usr/share/java/postgresql.jar"
_DRIVERS: Final[dict[str, dict[str, dict[str, str]]]] = {
    "sqlite": {"sqlite": {}},
    "postgres": {"postgres": {"driver": "psycopg"}, "postgres ADBC": {"driver": "adbc"}},
}


class Spark:
    """A Spark process that runs one job after the other."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._answer()

    def do(self, work: str, **given: Any) -> dict[str, float]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": work, **given}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, float]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(DONE):
                found: dict[str, float] = json.loads(line.removeprefix(DONE))
                return found
        raise RuntimeError(f"Spark has ended with {self._process.wait()}; what it said stands above")


@contextmanager
def _spark(jar: str | None = None) -> Iterator[Spark]:
    command = [sys.executable, "-m", "benchmarks.spark_load", *([jar] if jar else [])]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        try:
            yield Spark(process)
        finally:
            process.kill()


def dead_letters(bench: Bench) -> Rounds:
    """All columns of many dead letters: by our source, as SQLAlchemy's rows, and on Postgres by JDBC.

    On Postgres with the accelerator too. JDBC is measured twice: converted to the same columns, and raw, with JSON as
    text and times as numbers. Our source is measured twice too: with properties as maps, and as JSON. Each is compared
    with its counterpart, and maps with raw JDBC too. Two columns alone are compared with two columns. The CPU time of
    Postgres counts in all.
    """
    found: Rounds = {}
    jar = jdbc_jar() if "postgres" in bench.stores else None
    with _spark(jar) as spark:
        for name in bench.stores:
            url = bench.new_url(name, "dead")
            bench.say(f"{bench.plan.dead_letters:,} dead letters in {name}")
            fill_dead_letters(url, bench.plan.dead_letters, bench.plan.body_bytes)
            for number in range(bench.plan.rounds):
                bench.say(f"round {number + 1} of {bench.plan.rounds}: {name}")
                for variant, figures in _by_each(bench, spark, name, url, jar).items():
                    found.setdefault(variant, []).append(figures)
    return found


def _by_each(bench: Bench, spark: Spark, name: str, url: str, jar: str | None) -> dict[str, Figures]:
    pids = bench.postgres.pids()[:1] if name == "postgres" else []

    def rate(kind: str, narrow: bool = False, **options: str) -> float:
        given = {"kind": kind, "rows": bench.plan.dead_letters, "pids": pids, "options": options, "narrow": narrow}
        with _url_for(kind, url) as where:
            done = spark.do("read", url=where, **given)
        return done["rows"] / max(done["cpu_s"], 1e-3)

    rows = rate("rows")
    has_jdbc = name == "postgres" and jar is not None
    jdbc = (rate("jdbc"), rate("jdbc_raw"), rate("jdbc_raw", True)) if has_jdbc else None
    found = {}
    for variant, driver in _DRIVERS[name].items():
        maps, as_json = (rate("popmq", False, propertiesAs=each, **driver) for each in ("map", "json"))
        two = rate("popmq", True, **driver)
        found[variant] = {"rate": maps, "json_rate": as_json, "narrow_rate": two, "of_rows": maps / rows}
        if jdbc is not None:
            made, raw, raw_two = jdbc
            found[variant] |= {"of_jdbc": maps / made, "of_jdbc_raw": as_json / raw, "maps_of_jdbc_raw": maps / raw}
            found[variant]["narrow_of_jdbc"] = two / raw_two
    return found


def micro_batch(bench: Bench) -> Rounds:
    """A micro-batch of one row, of dead letters and of a queue, compared with a source that does nothing."""
    plan, found = bench.plan, Rounds()
    batches = plan.micro_batches + 3
    with _spark() as spark:
        spark.do("micro_batch", batches=10, format="empty", options={"batches": "10"})  # to warm the JVM
        for name in bench.stores:
            url = bench.new_url(name, "batches")
            fill_dead_letters(url, batches + 1, bench.plan.body_bytes)
            dead = {"url": url, "maxRowsPerTrigger": "1"}
            flights_url = bench.new_url(name, "flights")
            fill_flights(flights_url, 8 * batches)
            with bench.serving(name, flights_url) as server:
                queue = _flights_of(server.endpoint) | {"maxOffsetsPerTrigger": "1", "startingOffsets": "earliest"}
                for number in range(plan.rounds):
                    bench.say(f"round {number + 1} of {plan.rounds}: {name}")
                    empty = {"format": "empty", "options": {"batches": str(batches)}}
                    floor = spark.do("micro_batch", batches=batches, **empty)["ms"]
                    for variant, options in ((name, dead), (f"{name} queue", queue)):
                        took = spark.do("micro_batch", batches=batches, format="popmq", options=options)["ms"]
                        found.setdefault(variant, []).append({"ms": took, "of_empty": took / floor})
    return found


def _flights_of(endpoint: str) -> dict[str, str]:
    return {"endpoints": endpoint, "topic": TOPIC, "consumerGroup": "bench-spark"}


def flights_to_parquet(bench: Bench) -> Rounds:
    """The flights of 2013 from a topic to Parquet, compared with the same rows from Parquet to Parquet."""
    plan, found = bench.plan, Rounds()
    with _spark() as spark, bench.folder("parquet") as folder:
        for name in bench.stores:
            url = bench.new_url(name, "flights")
            bench.say(f"storing {plan.flights:,} flights in {name}")
            fill_flights(url, plan.flights)
            with bench.serving(name, url) as server:
                pids = [server.pid, *(bench.postgres.pids()[:1] if name == "postgres" else [])]
                options = _flights_of(server.endpoint)
                both = {"rows": plan.flights, "pids": pids}
                found[name] = [_flights(spark, options, both, folder / name) for _ in range(plan.rounds)]
    return found


def _flights(spark: Spark, options: dict[str, str], both: dict[str, Any], folder: Path) -> Figures:
    stored, again = str(folder / "flights"), str(folder / "again")
    ours = spark.do("to_parquet", format="popmq", options=options, to=stored, **both)
    parquet = spark.do("to_parquet", format="parquet", options={}, path=stored, to=again, **both)
    rates = [each["rows"] / max(each["cpu_s"], 1e-3) for each in (ours, parquet)]
    return {"rate": rates[0], "of_parquet": rates[0] / rates[1]}


def jdbc_jar() -> str | None:
    """The path of the Postgres driver for Java; None, with a message, if there is none."""
    jar = os.environ.get(JAR_VARIABLE, JAR)
    if Path(jar).is_file():
        return jar
    print(
        f"spark_dead_letters: no comparison with JDBC, because there is no driver at {jar}; install it with"
        f" `apt-get install libpostgresql-jdbc-java`, or set its path in {JAR_VARIABLE}",
        file=sys.stderr,
    )
    return None


def _url_for(kind: str, url: str) -> AbstractContextManager[str]:
    if kind.startswith("jdbc"):
        return _jdbc_url(url)
    return nullcontext(url.replace("postgresql://", "postgresql+psycopg://", 1) if kind == "rows" else url)


@contextmanager
def _jdbc_url(url: str) -> Iterator[str]:
    """The URL for JDBC, which needs TCP and takes the user as an option."""
    where = make_url(url)
    folder = str(where.query.get("host", ""))
    with tcp_door(f"{folder}/.s.PGSQL.{where.port or 5432}") if folder else nullcontext(where.port or 5432) as port:
        yield f"jdbc:postgresql://{where.host or '127.0.0.1'}:{port}/{where.database}?user={where.username}"
