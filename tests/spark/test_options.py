"""What a reader is told wrongly is refused by option, value and what is allowed."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")

from popclient.spark.dead_letters.database import connected
from popclient.spark.dead_letters.options import DeadLetterOptions, parse
from popclient.spark.dead_letters.reading import split
from popclient.spark.options import shown

URL = "sqlite:////data/popmq.db"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ["url is missing", "sqlite:///popmq.db"]),
        ({"url": "popmq.db"}, ["url='popmq.db'", "sqlite:///popmq.db"]),
        ({"url": "mysql://me:secret@host/db"}, ["mysql", "url='mysql://***@host/db'", "postgresql://"]),
        ({"url": "sqlite://"}, ["in memory", "name a file"]),
        ({"url": URL, "consumergrup": "g"}, ["consumergrup='g'", "unknown", "consumerGroup, topic, numPartitions"]),
        ({"url": URL, "consumergrup": "g"}, ["did you mean consumerGroup? allowed are"]),
        ({"url": URL, "consumergroup": " "}, ["consumerGroup=' '", "leave the option out"]),
        ({"url": URL, "numpartitions": "0"}, ["numPartitions='0'", "1 to 1000"]),
        ({"url": URL, "numpartitions": "1001"}, ["numPartitions='1001'", "1 to 1000"]),
        ({"url": URL, "numpartitions": "four"}, ["numPartitions='four'", "1 to 1000"]),
        ({"url": URL, "startingtimestamp": "yesterday"}, ["startingTimestamp='yesterday'", "epoch milliseconds"]),
        ({"url": URL, "endingtimestamp": "2013-02-08T00:00:00"}, ["endingTimestamp=", "with its zone"]),
        ({"url": URL, "propertiesas": "xml"}, ["propertiesAs='xml'", "map or json"]),
        ({"url": URL, "driver": "adbc"}, ["driver='adbc'", "for Postgres"]),
        ({"url": "postgresql://h/db", "driver": "jdbc"}, ["driver='jdbc'", "auto or adbc or psycopg"]),
        ({"url": URL, "view": "lineage", "propertiesas": "json"}, ["propertiesas='json'", "is unknown"]),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], words: list[str]) -> None:
    with pytest.raises(ValueError) as refused:
        parse(options)
    for word in words:
        assert word in str(refused.value)
    assert "secret" not in str(refused.value)


def test_an_accelerator_that_is_not_there_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("popclient.spark.dead_letters.options.has_adbc", lambda: False)
    with pytest.raises(
        ValueError, match=r"driver='adbc' is not allowed; it is not installed: pip install 'popmq\[adbc\]'"
    ):
        parse({"url": "postgresql://h/db", "driver": "adbc"})


_SPOILT = [
    "postgres://u:hunter2@h",
    "postgres://u:hun/ter2@h",
    "postgres://u:hun:ter2@h",
    "postgresql://u:hun@ter2@h/db",
    "postgresql://u:p?password=hun@ter2@h/db",
    "mysql://h/db?user=u&password=hun@ter2&ssl=1",
    "jdbc:postgresql://h/db?user=u&sslPassword=hunter2",
    "host=h user=u passwd = hunter2",
    "postgresql:u:hunter2@h",
]


@pytest.mark.parametrize("value", _SPOILT)
def test_a_password_is_in_no_error(value: str) -> None:
    for options in ({"url": value}, {"url": URL, "jdbcUrl": value}, {"url": URL, "numPartitions": value}):
        with pytest.raises(ValueError) as refused:
            parse(options)
        assert "***" in str(refused.value)
        assert not re.findall("hun|ter2", str(refused.value))


@pytest.mark.parametrize(
    "url", ["postgresql://u:hun%40ter2@127.0.0.1:1/db", "postgresql://127.0.0.1:1/db?password=hunter2"]
)
def test_a_database_that_cannot_be_reached_is_named_without_its_password(url: str) -> None:
    with pytest.raises(ValueError, match=r"127\.0\.0\.1:1/db") as refused, connected(parse({"url": url}).url):
        pass
    assert not re.findall("hun|ter2", str(refused.value))


def test_several_hosts() -> None:
    url = parse({"url": "postgresql://u:hunter2@h1:1,h2:2/db"}).url
    hosts = "host=h1%3A1&host=h2%3A2&target_session_attrs=primary"
    assert url == f"postgresql+psycopg://u:hunter2@/db?{hosts}"
    assert parse({"url": "postgresql://u:hunter2@/db?host=h1:1&host=h2:2"}).url == url
    assert parse({"url": "postgresql://u:hunter2@h1:1,h2:2/db?target_session_attrs=read-write"}).url == url
    assert parse({"url": "postgresql://u@h/db?target_session_attrs=standby"}).url.endswith("=standby")
    with pytest.raises(ValueError, match=r"=prefer-standby: .* may lack rows; name one standby"):
        parse({"url": "postgresql://u@h1,h2/db?target_session_attrs=prefer-standby"})


def test_what_is_no_secret_is_quoted_whole() -> None:
    for value in ("sqlite:////data/popmq.db", "h:1;g:2", "user@host", '{"a": {"0": -1}}', "user=u&ssl=1"):
        assert shown(value) == repr(value)
    assert shown("postgresql://u:p@h/db?password=x&ssl=1") == "'postgresql://***@h/db?password=***&ssl=1'"


def test_right_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse({"url": "sqlite:///popmq.db"}) == DeadLetterOptions(url=f"sqlite:///{tmp_path}/popmq.db")
    assert parse(
        {
            "url": "postgresql://me:secret@host/db",
            "namespace": "tenant",
            "consumergroup": "billing",
            "topic": "flights",
            "numpartitions": "8",
            "startingtimestamp": "2013-02-08T00:00:00Z",
            "endingtimestamp": "1360281600001",
        }
    ) == DeadLetterOptions(
        url="postgresql+psycopg://me:secret@host/db",
        namespace="tenant",
        consumer_group="billing",
        topic="flights",
        num_partitions=8,
        starting_ms=1360281600000,
        ending_ms=1360281600001,
    )


@given(st.integers(1, 2**50), st.integers(0, 2**40), st.integers(1, 1_000))
def test_ranges_cover_all_ids_once(first: int, width: int, parts: int) -> None:
    ranges = split(first, first + width, parts)
    assert len(ranges) == min(parts, width + 1)
    assert (ranges[0].first, ranges[-1].last) == (first, first + width)
    assert all(a.last + 1 == b.first for a, b in pairwise(ranges))
    assert all(each.first <= each.last for each in ranges)
