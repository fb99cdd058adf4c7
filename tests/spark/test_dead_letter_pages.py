"""Pages of dead letters, made from columns: every shape of value on both databases, and pages that are told by rows."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import insert, text, update

pytest.importorskip("pyarrow", reason="spark: pip install 'popmq[spark]'")

import psycopg
import pyarrow as pa
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql.types import StructType

from popclient.spark.columns import record_batch
from popclient.spark.dead_letters import adbc, fetching, queries
from popclient.spark.dead_letters.adbc import second_connection
from popclient.spark.dead_letters.columns import BODY, DEAD_LETTERS, LINEAGE
from popclient.spark.dead_letters.database import connected
from popclient.spark.dead_letters.decoding import ids, lists, maps
from popclient.spark.dead_letters.fetching import pages
from popclient.spark.dead_letters.options import parse
from popclient.spark.dead_letters.reading import ViewReader
from popclient.spark.dead_letters.streaming import DeadLetterStream
from popserver.database.database import Database
from popserver.database.schema import message, redrive
from popserver.model.message import id_to_bytes
from tests.spark.filled import BILLING, body_of, fill, id_of
from tests.support.postgres import PostgresServer, fresh_database

COUNT = 50
FACTS = "topic consumer_group queue_id queue_offset dead_timestamp delivery_attempt reason redrive_state plan_id id"


@pytest.fixture(params=["sqlite", "postgres", "adbc"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A database of COUNT dead letters; Postgres twice, without and with the accelerator."""
    monkeypatch.setattr(fetching, "has_adbc", lambda: request.param == "adbc")
    if request.param == "sqlite":
        made = f"sqlite:///{tmp_path}/popmq.db"
        fill(made, COUNT)
        yield made
        return
    with fresh_database(request.getfixturevalue("postgres")) as made:
        fill(made, COUNT)
        yield made


def change(url: str, *statements: Any) -> None:
    database = Database(url)
    with database.writing.connect() as conn:
        database.begin(conn)
        for each in statements:
            conn.execute(each)
        conn.exec_driver_sql("COMMIT")
    database.close()


def read(url: str, view: str = "dead_letters", **options: str) -> list[dict[str, Any]]:
    chosen = parse({"url": url, "view": view, **options})
    whole = DEAD_LETTERS if view == "dead_letters" else LINEAGE
    with connected(chosen.url) as conn:
        found = list(pages(conn, chosen, whole.sources_of(whole.columns), 1, 2**62))
    return [
        dict(zip([source.name for source in page], row, strict=True))
        for page in found
        for row in zip(*(array.to_pylist() for array in page.values()), strict=True)
    ]


def test_rows_without_columns_are_counted(url: str) -> None:
    chosen = parse({"url": url})
    with connected(chosen.url) as conn:
        [page] = pages(conn, chosen, DEAD_LETTERS.sources_of(()), 1, 2**62)
    assert record_batch((), pa.schema([]), page, len(next(iter(page.values())))).num_rows == COUNT - 1


@pytest.mark.parametrize("options", [{}, {"consumerGroup": "billing"}, {"topic": "hotels", "startingTimestamp": "9"}])
def test_columns_of_no_message_are_read_without_the_messages(url: str, options: dict[str, str]) -> None:
    """The same rows as in the view, which looks each message up."""
    chosen = parse({"url": url, **options})
    facts = [column for column in DEAD_LETTERS.columns if column.name in FACTS.split()]
    assert len(facts) == len(FACTS.split())
    sources = DEAD_LETTERS.sources_of(facts)
    assert "FROM dead_letter l" in str(queries.chosen(chosen, sources))
    whole = read(url, **options)
    with connected(chosen.url) as conn:
        [page] = pages(conn, chosen, sources, 1, 2**62)
    assert whole
    assert pa.Table.from_pydict({source.name: array for source, array in page.items()}).to_pylist() == [
        {source.name: row[source.name] for source in sources} for row in whole
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"consumerGroup": "biling"},
            "consumerGroup='biling' is unknown; did you mean billing? this database has",
        ),
        ({"consumerGroup": "nobody"}, "consumerGroup='nobody' is unknown; this database has billing, radar"),
        ({"consumerGroup": "radar", "namespace": "tenant"}, "this namespace 'tenant' has billing"),
        ({"topic": "hotel"}, "topic='hotel' is unknown; did you mean hotels? this database has flights, hotels"),
        ({"view": "lineage", "planId": "p"}, "planId='p' is unknown; this database has none"),
    ],
)
def test_an_unknown_name_is_refused_with_the_known_ones(url: str, options: dict[str, str], words: str) -> None:
    chosen = parse({"url": url, **options})
    with pytest.raises(ValueError) as refused:
        ViewReader(chosen, StructType()).partitions()
    assert words in str(refused.value)
    if "view" not in options:
        with pytest.raises(ValueError) as refused:
            DeadLetterStream(chosen, StructType()).initialOffset()
        assert words in str(refused.value)


def test_a_known_group_without_dead_letters_has_no_rows(url: str) -> None:
    chosen = parse({"url": url, "consumerGroup": "billing", "startingId": "1000"})
    assert ViewReader(chosen, StructType()).partitions() == []
    DeadLetterStream(chosen, StructType()).initialOffset()


def test_what_stands_in_the_database(url: str) -> None:
    rows = read(url)
    assert [row["id"] for row in rows] == list(range(1, COUNT))
    for i, row in enumerate(rows):
        assert row["message_id"] == id_to_bytes(id_of(i))
        assert (row["tag"], row["message_group"], row["plan_id"]) == (None if i % 2 == 0 else "UA", None, None)
        assert i % 11 == 0 or row["body"] == body_of(i)


@pytest.mark.parametrize("tag", ["\x01", "a\x02b", "\x02", "", "Zoë ☃"])
def test_a_text_of_any_kind(url: str, tag: str) -> None:
    """What stands between the values of a page, or for a missing one, may be a value too."""
    change(url, update(message).values(tag=tag).where(message.c.message_id == id_to_bytes(id_of(4))))
    assert [row["tag"] for row in read(url)][:6] == [None, "UA", None, "UA", tag, "UA"]


def test_a_dead_letter_of_a_lite_topic(url: str) -> None:
    is_one = message.c.message_id == id_to_bytes(id_of(4))
    change(url, update(message).values(message_type="LITE", message_group="user-42").where(is_one))
    row = read(url)[4]
    assert (row["message_type"], row["lite_topic"], row["message_group"]) == ("LITE", "user-42", None)
    assert {row["lite_topic"] for row in read(url)} == {"user-42", None}


def test_a_body_may_be_empty_or_large(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page ends with the body that fills it."""
    large = bytes(range(256)) * 400
    change(
        url,
        update(message).values(body=b"").where(message.c.message_id == id_to_bytes(id_of(3))),
        update(message).values(body=large).where(message.c.message_id == id_to_bytes(id_of(4))),
    )
    monkeypatch.setattr(fetching, "PAGE_BYTES_MAX", 50_000)
    rows = read(url)
    assert [row["id"] for row in rows] == list(range(1, COUNT))
    assert [rows[3]["body"], rows[4]["body"], rows[5]["body"]] == [b"", large, body_of(5)]


@pytest.mark.parametrize("tag", ["UA", "told by rows \x02"])
def test_a_page_holds_its_bytes_and_one_body(url: str, tag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Postgres the driver holds all that a statement gives, so that counts too."""
    change(url, update(message).values(tag=tag))
    monkeypatch.setattr(fetching, "PAGE_BYTES_MAX", 200)
    held: list[int] = []
    executed = fetching._executed

    @contextmanager
    def counting(*given: Any) -> Iterator[Any]:
        with executed(*given) as cursor:
            held.append(cursor.rowcount)
            yield cursor

    monkeypatch.setattr(fetching, "_executed", counting)
    chosen = parse({"url": url})
    with connected(chosen.url) as conn:
        found = list(pages(conn, chosen, DEAD_LETTERS.sources_of(DEAD_LETTERS.columns), 1, 2**62))
    assert [number for page in found for number in page[DEAD_LETTERS.key].to_pylist()] == list(range(1, COUNT))
    for page in found:
        sizes = [len(body) for body in page[BODY].to_pylist()]
        assert sum(sizes[:-1]) < 200
    assert max(held, default=0) <= max(len(page[BODY]) for page in found)


@pytest.mark.parametrize("page_rows", [1, 3, 1_000])
def test_a_dead_letter_in_several_plans(url: str, page_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lineage has several rows for one: none is lost between two pages."""
    rows = [(f"plan-{plan}", number) for number in (2, 3, 5) for plan in range(2)] + [("plan-0", 7)]
    change(url, insert(redrive).values([_redrive(*each) for each in rows]))
    monkeypatch.setattr(fetching, "PAGE_ROWS_MAX", max(page_rows, 2))
    found = read(url, "lineage")
    assert sorted((row["plan_id"], row["dead_letter_id"]) for row in found) == sorted(rows)
    assert {row["message_id"] for row in found if row["dead_letter_id"] == 3} == {id_to_bytes(id_of(2))}
    assert {row["redriven_message_id"] for row in found} == {None}
    assert [row["dead_letter_id"] for row in read(url, "lineage", planId="plan-1")] == [2, 3, 5]


def _redrive(plan_id: str, number: int) -> dict[str, Any]:
    return {
        "plan_id": plan_id,
        "dead_letter_id": number,
        "group_id": BILLING,
        "origin_key": (1 << 40) + number - 1,
        "origin_topic_id": 1,
        "message_id": id_to_bytes(id_of(number - 1)),
        "attempt": 3,
        "dead_reason": "",
        "dead_at_ms": 0,
        "state": "PLANNED",
        "change": "NONE",
        "reason": "",
    }


def test_an_older_database_is_told_to_upgrade(url: str) -> None:
    change(
        url,
        text("DROP VIEW dead_letters"),
        text("CREATE VIEW dead_letters AS SELECT dead_letter_id AS id FROM dead_letter"),
    )
    with pytest.raises(ValueError, match="popmq db upgrade"):
        read(url)


@pytest.mark.parametrize(("driver", "used"), [("psycopg", False), ("adbc", True), ("auto", True)])
def test_the_driver_is_chosen(
    postgres: PostgresServer, driver: str, used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The accelerator opens its connection with the settings of the other: it can only read, and is named."""
    seen: list[object] = []

    @contextmanager
    def watched(own: Any) -> Iterator[Any]:
        with second_connection(own) as beside:
            with beside.cursor() as cursor:
                cursor.execute(
                    "SELECT current_setting('default_transaction_read_only'), application_name"
                    " FROM pg_stat_activity WHERE pid = pg_backend_pid()"
                )
                seen.append(cursor.fetchone())
            yield beside

    monkeypatch.setattr(fetching, "second_connection", watched)
    with fresh_database(postgres) as url:
        fill(url, 3)
        assert len(read(url.replace("postgres@", "postgres:pass%20'%5Cword@"), driver=driver)) == 2
    assert seen == [("on", "popmq-spark")] * used


def test_an_accelerator_that_cannot_connect_is_done_without(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Unless it was asked for by name."""
    monkeypatch.setattr(adbc, "_conninfo", lambda _info: "host=127.0.0.1 port=1")
    with fresh_database(postgres) as url:
        fill(url, 3)
        assert len(read(url)) == 2
        assert "dead letters are read without ADBC" in caplog.text
        with pytest.raises(ValueError, match=r"option url='postgresql.*cannot be read: .*port 1"):
            read(url, driver="adbc")
        monkeypatch.setitem(sys.modules, "adbc_driver_postgresql", None)
        assert len(read(url)) == 2
        with (
            pytest.raises(ValueError, match=r"not installed for Spark's workers .*pip install 'popmq\[adbc\]'"),
            second_connection(None),
        ):
            pass


def test_an_accelerator_goes_where_the_driver_went(postgres: PostgresServer) -> None:
    """Of several servers to the same one, by the place that stands behind a default."""
    with (
        fresh_database(postgres) as url,
        psycopg.connect(url, load_balance_hosts="random", target_session_attrs="any") as conn,
    ):
        where = conninfo_to_dict(adbc._conninfo(conn.info))
        assert (where["host"], where["port"]) == (conn.info.host, str(conn.info.port))
        assert not {"target_session_attrs", "load_balance_hosts"} & where.keys()


@given(st.lists(st.none() | st.integers(0, 99).map(id_of)), st.integers(0, 3))
def test_ids_as_their_producers_wrote_them(values: list[str | None], first: int) -> None:
    for each in (values, [value for value in values if value and value.startswith("01")]):
        stored = pa.array([None if value is None else id_to_bytes(value) for value in each], pa.binary())
        assert ids(stored.slice(first)).to_pylist() == each[first:]


WORDS = st.text(max_size=4)
written = json.JSONEncoder(ensure_ascii=False).encode


@given(st.lists(st.none() | st.lists(WORDS, max_size=3)))
def test_lists_as_a_parser_reads_them(values: list[list[str] | None]) -> None:
    texts = pa.array(
        [None if value is None else json.dumps(value, ensure_ascii=False) for value in values], pa.string()
    )
    assert lists(texts).to_pylist() == [value or [] for value in values]


@given(st.lists(st.none() | st.dictionaries(WORDS, WORDS, max_size=3)))
def test_maps_as_a_parser_reads_them(values: list[dict[str, str] | None]) -> None:
    texts = pa.array(
        [None if value is None else json.dumps(value, ensure_ascii=False) for value in values], pa.string()
    )
    assert [dict(each) for each in maps(texts).to_pylist()] == [value or {} for value in values]
