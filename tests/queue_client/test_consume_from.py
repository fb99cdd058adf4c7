"""Where a queue begins."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from popclient._progress.start import ConsumeFromWhere, StartQuery, consume_timestamp_of, start_of
from popclient._progress.store import NO_OFFSET, OFFSET_ERROR

LAST = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
TIMESTAMP = ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
NOW = datetime(2024, 5, 6, 12, 0, tzinfo=UTC)


@pytest.mark.row("I5")
@pytest.mark.parametrize("consume_from", ConsumeFromWhere)
@pytest.mark.parametrize("topic", ["t", "%RETRY%g"])
@pytest.mark.parametrize("stored", [0, 103])
def test_stored_progress_wins_over_the_setting(consume_from: ConsumeFromWhere, topic: str, stored: int) -> None:
    assert start_of(consume_from, topic, stored) == stored


@pytest.mark.row("I6")
@pytest.mark.parametrize("consume_from", ConsumeFromWhere)
@pytest.mark.parametrize("topic", ["t", "%RETRY%g"])
def test_when_nobody_knows_the_progress_nothing_begins(consume_from: ConsumeFromWhere, topic: str) -> None:
    assert start_of(consume_from, topic, OFFSET_ERROR) is None


@pytest.mark.parametrize(
    ("consume_from", "expected"), [(LAST, StartQuery.END), (FIRST, 0), (TIMESTAMP, StartQuery.TIMESTAMP)]
)
def test_a_new_group_begins_where_the_setting_says(consume_from: ConsumeFromWhere, expected: int | StartQuery) -> None:
    assert start_of(consume_from, "t", NO_OFFSET) == expected


@pytest.mark.row("I4")
@pytest.mark.parametrize(("consume_from", "expected"), [(LAST, 0), (FIRST, 0), (TIMESTAMP, StartQuery.END)])
def test_a_retry_topic_begins_at_its_beginning_but_by_time_at_its_end(
    consume_from: ConsumeFromWhere, expected: int | StartQuery
) -> None:
    assert start_of(consume_from, "%RETRY%g", NO_OFFSET) == expected


@pytest.mark.parametrize(
    "name",
    ["CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST", "CONSUME_FROM_MIN_OFFSET", "CONSUME_FROM_MAX_OFFSET"],
)
def test_the_old_names_all_mean_last(name: str) -> None:
    assert ConsumeFromWhere.of(name) is LAST


@pytest.mark.parametrize("where", ConsumeFromWhere)
def test_a_setting_has_its_name(where: ConsumeFromWhere) -> None:
    assert ConsumeFromWhere.of(where.value) is where


def test_a_name_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="consume_from is 'LATEST'; it must be one of CONSUME_FROM_LAST_OFFSET"):
        ConsumeFromWhere.of("LATEST")


@pytest.fixture
def in_new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("in_new_york")
def test_a_timestamp_is_fourteen_digits_of_local_time() -> None:
    assert consume_timestamp_of("20240115120000", NOW) == datetime(2024, 1, 15, 17, 0, tzinfo=UTC)
    assert consume_timestamp_of("20240715120000", NOW) == datetime(2024, 7, 15, 16, 0, tzinfo=UTC)


def test_without_a_timestamp_it_is_half_an_hour_ago() -> None:
    assert consume_timestamp_of(None, NOW) == NOW - timedelta(minutes=30)


def test_an_aware_datetime_is_itself() -> None:
    assert consume_timestamp_of(NOW, NOW + timedelta(days=1)) is NOW


@pytest.mark.parametrize(
    "given",
    ["", "2024011512000", "202401151200000", "20241315120000", "2024-01-15T12:00", "２０２４０１１５１２００００"],
)
def test_what_is_no_timestamp_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match="it must be yyyyMMddHHmmss, such as 20131223171201"):
        consume_timestamp_of(given, NOW)


def test_a_datetime_needs_its_zone() -> None:
    with pytest.raises(ValueError, match="has no time zone; use an aware datetime"):
        consume_timestamp_of(datetime(2024, 1, 15), NOW)  # noqa: DTZ001  that is the mistake
    with pytest.raises(TypeError, match="consume_timestamp is 20240115120000; it must be"):
        consume_timestamp_of(20240115120000, NOW)  # type: ignore[arg-type]
