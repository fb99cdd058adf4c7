"""Bodies that were packed count as what they unpack to: 4 MiB on the wire may be 64 in memory."""

from __future__ import annotations

import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")

import pyarrow as pa
from pyspark.sql.types import BinaryType, LongType, StringType, StructType
from sqlalchemy import update

from popclient.spark import bodies, message_columns
from popclient.spark.bodies import unpacked
from popclient.spark.dead_letters.options import parse
from popclient.spark.dead_letters.reading import IdRange, ViewPages
from popclient.spark.message_columns import MessageColumns
from popproto.v2 import definition_pb2 as pb
from popserver.database.database import Database
from popserver.database.schema import message
from tests.spark.filled import fill

BOUND = 1_000
LARGE = 400  # of which two fit

BODY_ONLY = StructType().add("body", BinaryType())
ID_AND_BODY = StructType().add("id", LongType()).add("body", BinaryType())


@pytest.fixture(autouse=True)
def bound(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (bodies, message_columns):
        monkeypatch.setattr(module, "BATCH_BYTES_MAX", BOUND)


def body(number: int, size: int = LARGE) -> bytes:
    return b"%d" % (number % 10) * size


def packed(number: int, size: int = LARGE) -> Any:
    system = pb.SystemProperties(body_encoding=pb.GZIP, message_id=str(number))
    return SimpleNamespace(_wire=pb.Message(body=zlib.compress(body(number, size)), system_properties=system))


def test_a_batch_of_messages_is_bounded_by_what_they_unpack_to() -> None:
    made = list(MessageColumns(BODY_ONLY).of_messages(packed(number) for number in range(5)))
    assert [each.column("body").to_pylist() for each in made] == [
        [body(0), body(1)],
        [body(2), body(3)],
        [body(4)],
    ]


def test_a_body_beyond_the_bound_is_a_batch_alone() -> None:
    made = MessageColumns(BODY_ONLY).of_messages([packed(0), packed(1, 3 * BOUND), packed(2)])
    assert [each.num_rows for each in made] == [1, 1, 1]


def test_bodies_that_nobody_reads_are_not_unpacked() -> None:
    columns = MessageColumns(StructType().add("message_id", StringType()))
    (made,) = columns.of_messages([packed(0, 3 * BOUND), packed(1)])
    assert made.column("message_id").to_pylist() == ["0", "1"]


def test_arrays_of_bodies_are_bounded_likewise() -> None:
    stored = pa.array([zlib.compress(body(number)) for number in range(5)] + [b"plain"], pa.binary())
    encodings = pa.array(["GZIP"] * 5 + [None])
    found = [each.to_pylist() for each in unpacked(stored, encodings)]
    assert found == [[body(0), body(1)], [body(2), body(3)], [body(4), b"plain"]]


def test_a_page_of_dead_letters_is_several_batches(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/popmq.db"
    fill(url, 6)
    database = Database(url)
    with database.writing.connect() as conn:
        database.begin(conn)
        conn.execute(update(message).values(body=zlib.compress(body(7)), body_encoding="GZIP"))
        conn.exec_driver_sql("COMMIT")
    database.close()
    found = list(ViewPages(parse({"url": url}), ID_AND_BODY).read(IdRange(1, 6)))
    assert [each.num_rows for each in found] == [2, 2, 1]  # the sixth is another tenant's
    rows = [row for each in found for row in each.to_pylist()]
    assert rows == [{"id": number, "body": body(7)} for number in range(1, 6)]
