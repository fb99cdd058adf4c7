"""The options for reading dead letters: `spark.read.format("popmq").option(…)`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from popclient._urls import TARGET, has_several_hosts, readable
from popclient.spark.columns import schema_of
from popclient.spark.dead_letters.columns import JSON, MAP, view_of
from popclient.spark.options import OptionReader, OptionTable, choice, number, shown, special, text, time_ms

DEAD_LETTERS: Final = "dead_letters"
LINEAGE: Final = "lineage"
AUTO: Final = "auto"
ADBC: Final = "adbc"
PSYCOPG: Final = "psycopg"
GET_ADBC: Final = "pip install 'popmq[adbc]'"
BACKENDS: Final = ("sqlite", "postgresql")

_WRITE_URL: Final = "write sqlite:///popmq.db or postgresql://user@host/name"


class DeadLetterOptions(NamedTuple):
    """Which dead letters to read, and in how many parts.

    url: of the database. namespace: "" is the default one. consumer_group, topic (the original topic of the message):
    None is all. starting_ms (included) to ending_ms (excluded): time of death, epoch milliseconds; the same for ids.
    max_rows_per_trigger: for a stream; None is all rows. plan_id: of a redrive. properties_as: MAP, or JSON (a
    string). driver: for Postgres; AUTO is ADBC for many bodies, if installed.
    """

    url: str
    view: str = DEAD_LETTERS
    namespace: str = ""
    consumer_group: str | None = None
    topic: str | None = None
    num_partitions: int = 4
    starting_ms: int | None = None
    ending_ms: int | None = None
    starting_id: int | None = None
    ending_id: int | None = None
    max_rows_per_trigger: int | None = None
    plan_id: str | None = None
    properties_as: str = MAP
    driver: str = AUTO

    @property
    def schema(self) -> str:
        """As Spark's DDL."""
        return schema_of(view_of(self.view, self.properties_as).columns)

    def refuse_in_a_stream(self) -> None:
        """Raises `ValueError` for an option that only a batch can have."""
        if self.view == LINEAGE:
            raise ValueError(f"option view='{LINEAGE}' is for spark.read, because its rows change; use spark.read")
        for name, value in (("endingTimestamp", self.ending_ms), ("endingId", self.ending_id)):
            if value is not None:
                raise ValueError(
                    f"option {name}={value} is for spark.read; a stream has no end: leave it out, or filter the frame"
                )

    def refuse_in_a_batch(self) -> None:
        """Raises `ValueError` for an option that only a stream can have."""
        if self.max_rows_per_trigger is not None:
            raise ValueError(
                f"option maxRowsPerTrigger={self.max_rows_per_trigger} is for spark.readStream; limit a batch with"
                " startingId and endingId"
            )


def has_adbc() -> bool:
    """Does this process have ADBC? Other machines may differ."""
    return find_spec("adbc_driver_postgresql") is not None


def _driver(given: OptionReader) -> str:
    driver = given.choice("driver", AUTO, (AUTO, ADBC, PSYCOPG))
    if driver != AUTO and not (given.text("url") or "").startswith("postgresql"):
        raise given.refuse("driver", "it is for Postgres; leave it out")
    if driver == ADBC and not has_adbc():
        raise given.refuse("driver", f"it is not installed: {GET_ADBC}")
    return driver


def _url(given: OptionReader) -> str:
    written = given.needed("url", f"the database to read dead letters from; {_WRITE_URL}")
    try:
        url = make_url(readable(written))
    except (ArgumentError, ValueError):
        raise ValueError(f"option url={shown(written)} is no database URL; {_WRITE_URL}") from None
    if url.get_backend_name() not in BACKENDS:
        raise ValueError(f"option url={shown(written)} names {url.get_backend_name()}; {_WRITE_URL}")
    if "@" in (url.host or ""):
        raise ValueError(f"option url={shown(written)} has an @ too many; write one in a password as %40")
    if url.get_backend_name() == "postgresql":
        return _to_primary(url, written).set(drivername="postgresql+psycopg").render_as_string(hide_password=False)
    if url.database in {None, "", ":memory:"}:
        raise ValueError(
            f"option url={shown(written)} is a database in memory, which only its server can read; name a file"
        )
    # Workers may have another working directory.
    return url.set(database=str(Path(url.database).absolute())).render_as_string()


def _to_primary(url: URL, written: str) -> URL:
    """The sessions of a read are read-only, so with "read-write" libpq would refuse each of them."""
    target = url.query.get(TARGET)
    if has_several_hosts(url) and target not in {None, "primary", "read-write"}:
        raise ValueError(
            f"option url={shown(written)} has several hosts and {TARGET}={target}: each of Spark's workers could read"
            f" another standby, which may lack rows; name one standby, or write {TARGET}=primary"
        )
    if target == "read-write" or (target is None and has_several_hosts(url)):
        return url.update_query_dict({TARGET: "primary"})
    return url


_OF_BOTH: Final = {
    "url": special(_url, "url"),
    "view": choice("view", DEAD_LETTERS, (DEAD_LETTERS, LINEAGE)),
    "namespace": text("namespace", ""),
    "consumer_group": text("consumerGroup"),
    "topic": text("topic"),
    "num_partitions": number("numPartitions", 4, 1, 1_000),
    "driver": special(_driver, "driver"),
}
TABLES: Final = {
    DEAD_LETTERS: OptionTable(
        {
            **_OF_BOTH,
            "starting_ms": time_ms("startingTimestamp"),
            "ending_ms": time_ms("endingTimestamp"),
            "starting_id": number("startingId", None, 1),
            "ending_id": number("endingId", None, 1),
            "max_rows_per_trigger": number("maxRowsPerTrigger", None, 1),
            "properties_as": choice("propertiesAs", MAP, (MAP, JSON)),
        },
        elsewhere=(),
    ),
    LINEAGE: OptionTable({**_OF_BOTH, "plan_id": text("planId")}, elsewhere=()),
}


def parse(options: Mapping[str, str]) -> DeadLetterOptions:
    """Raises `ValueError` with the option, its value and what is allowed."""
    view: str = _OF_BOTH["view"].read(OptionReader(options))
    return DeadLetterOptions(**TABLES[view].read(options))
