"""What a reader of dead letters can be told: `spark.read.format("popmq").option(…)`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

NUM_PARTITIONS = 4
NUM_PARTITIONS_MAX = 1_000
BIGINT_MAX = 2**63 - 1
BACKENDS = ("sqlite", "postgresql")

# Spark hands every name over in lower case.
_NAMES = {
    name.lower(): name
    for name in (
        "url",
        "namespace",
        "consumerGroup",
        "topic",
        "numPartitions",
        "startingTimestamp",
        "endingTimestamp",
        "startingId",
        "endingId",
        "maxRowsPerTrigger",
    )
}
_PASSWORD = re.compile(r"(?<=:)[^:@/]*(?=@)")
_WRITE_URL = "write sqlite:///popmq.db or postgresql://user@host/name"


class Options(NamedTuple):
    """Which dead letters to read, and in how many parts.

    url: of the database. namespace: "" is the default one. consumer_group, topic (the one a message came from): None
    is all. The times a message died at are start (included) to end (excluded), epoch milliseconds; so are ids.
    max_rows_per_trigger: of a stream; None is whatever there is.
    """

    url: str
    namespace: str = ""
    consumer_group: str | None = None
    topic: str | None = None
    num_partitions: int = NUM_PARTITIONS
    starting_ms: int | None = None
    ending_ms: int | None = None
    starting_id: int | None = None
    ending_id: int | None = None
    max_rows_per_trigger: int | None = None

    def refuse_in_a_stream(self) -> None:
        """Raise `ValueError` for what only a batch can do."""
        for name, value in (("endingTimestamp", self.ending_ms), ("endingId", self.ending_id)):
            if value is not None:
                raise ValueError(
                    f"option {name}={value} is for spark.read; a stream has no end: leave it out, or filter the frame"
                )

    def refuse_in_a_batch(self) -> None:
        """Raise `ValueError` for what only a stream can do."""
        if self.max_rows_per_trigger is not None:
            raise ValueError(
                f"option maxRowsPerTrigger={self.max_rows_per_trigger} is for spark.readStream; a batch reads all that"
                " its other options ask for: narrow it with startingId and endingId"
            )


def parse(given: Mapping[str, str]) -> Options:
    """The options as Spark hands them over; raises `ValueError` naming the option, its value and what is allowed."""
    options = {name.lower(): value for name, value in given.items()}
    for name, value in options.items():
        if name not in _NAMES:
            raise ValueError(f"option {name}={value!r} is unknown; allowed are {', '.join(_NAMES.values())}")
    if "url" not in options:
        raise ValueError(f"option url is missing: the database to read dead letters from; {_WRITE_URL}")
    return Options(
        url=_url(options["url"]),
        namespace=options.get("namespace", ""),
        consumer_group=_name(options, "consumerGroup"),
        topic=_name(options, "topic"),
        num_partitions=_num_partitions(options.get("numpartitions", str(NUM_PARTITIONS))),
        starting_ms=_time_ms(options, "startingTimestamp"),
        ending_ms=_time_ms(options, "endingTimestamp"),
        starting_id=_count(options, "startingId"),
        ending_id=_count(options, "endingId"),
        max_rows_per_trigger=_count(options, "maxRowsPerTrigger"),
    )


def _url(given: str) -> str:
    shown = _PASSWORD.sub("***", given)
    try:
        url = make_url(given)
    except (ArgumentError, ValueError):
        raise ValueError(f"option url={shown!r} is no database URL; {_WRITE_URL}") from None
    if url.get_backend_name() not in BACKENDS:
        raise ValueError(f"option url={shown!r} names {url.get_backend_name()}; {_WRITE_URL}")
    if url.get_backend_name() == "postgresql":
        return url.set(drivername="postgresql+psycopg").render_as_string(hide_password=False)
    if url.database in {None, "", ":memory:"}:
        raise ValueError(f"option url={shown!r} is a database in memory, which only its server can read; name a file")
    # Workers may run in another folder than the one the user wrote this path in.
    return url.set(database=str(Path(url.database).absolute())).render_as_string()


def _name(options: Mapping[str, str], name: str) -> str | None:
    value = options.get(name.lower())
    if value is not None and not value.strip():
        raise ValueError(f"option {name}={value!r} is blank; name one, or leave the option out to read all")
    return value


def _num_partitions(value: str) -> int:
    if not value.strip().isdecimal() or not 1 <= int(value) <= NUM_PARTITIONS_MAX:
        raise ValueError(f"option numPartitions={value!r} is not allowed; give 1 to {NUM_PARTITIONS_MAX}")
    return int(value)


def _count(options: Mapping[str, str], name: str) -> int | None:
    value = options.get(name.lower())
    if value is not None and (not value.strip().isdecimal() or not 1 <= int(value) <= BIGINT_MAX):
        raise ValueError(f"option {name}={value!r} is not allowed; give a whole number from 1")
    return None if value is None else int(value)


def _time_ms(options: Mapping[str, str], name: str) -> int | None:
    value = options.get(name.lower())
    if value is None:
        return None
    if value.strip().isdecimal():
        return int(value)
    try:
        time = datetime.fromisoformat(value.strip())
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise ValueError(
            f"option {name}={value!r} is no time; give epoch milliseconds, or a time with its zone such as"
            " 2013-02-08T00:00:00Z"
        )
    return round(time.timestamp() * 1_000)
