"""The versions of Spark that PopMQ runs on, and what the older ones lack. No other module asks for a version.

Spark 4.2 has admission control (a stream's `latestOffset` gets the offset that the query has reached, and a limit), and
a stream's writer for Arrow. Spark 4.0 and 4.1 have neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from popclient._version import VERSION

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

OLDEST: Final = (4, 0)
NEWEST: Final = (4, 3)
REQUIREMENT: Final = "pyspark>=4.0,<4.4"  # as in pyproject.toml
_ADMISSION_CONTROL: Final = (4, 2)


def version() -> str:
    """Of the PySpark of this process, such as 4.3.0."""
    from pyspark import __version__

    return __version__


def minor(of: str) -> tuple[int, int]:
    """(4, 3) of 4.3.0."""
    numbers = of.split(".")
    return int(numbers[0]), int(numbers[1])


def written(of: tuple[int, int]) -> str:
    return ".".join(map(str, of))


def refuse_other_spark() -> None:
    """Raises `ValueError` for a PySpark on which this PopMQ does not run."""
    there = version()
    if OLDEST <= minor(there) <= NEWEST:
        return
    needed = f"PopMQ {VERSION} needs Spark {written(OLDEST)} to {written(NEWEST)}, and this is Spark {there}"
    if minor(there) < OLDEST:
        raise ValueError(
            f"{needed}, which has no data sources in Python; docs/spark-older.md#spark-35 reads dead letters and"
            f" messages without them, or pip install '{REQUIREMENT}' for a newer cluster"
        )
    raise ValueError(
        f"{needed}; run the job on a cluster of Spark {written(NEWEST)}, with pip install '{REQUIREMENT}' for its"
        " driver"
    )


def has_admission_control() -> bool:
    """Whether Spark tells a stream where the query is, and how much to read; and gives a stream's writer Arrow."""
    return minor(version()) >= _ADMISSION_CONTROL


def needs_newer(option: str, value: object, way_out: str) -> ValueError:
    """The error for an option that needs admission control."""
    return ValueError(
        f"option {option}={value!r} needs Spark {written(_ADMISSION_CONTROL)} or newer, and this is Spark {version()};"
        f" {way_out}"
    )


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects of a source: its times are in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    # Before 4.2 there is only UTC.
    return to_arrow_schema(schema, timezone="UTC") if has_admission_control() else to_arrow_schema(schema)
