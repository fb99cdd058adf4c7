"""What cannot work is refused where it is written: the option, what was given, and what would be taken."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from popclient import PullConsumer, aio


@pytest.mark.parametrize(
    ("option", "given", "kind", "sentence"),
    [
        ("group", "", ValueError, "group is ''; a pull consumer needs the name of its consumer group: every pull"),
        ("group", None, ValueError, "group is None"),
        ("filters", {"flights": 7}, TypeError, "expression is 7"),
        ("consume_from", "LAST", ValueError, "consume_from is 'LAST'; it must be one of CONSUME_FROM_LAST_OFFSET"),
        ("consume_timestamp", "2013", ValueError, "consume_timestamp is '2013'; it must be yyyyMMddHHmmss"),
        ("consume_timestamp", datetime(2013, 1, 1), ValueError, "no time zone"),  # noqa: DTZ001
        ("batch_size", 0, ValueError, "batch_size is 0; it must be from 1 to 160"),
        ("batch_size", 161, ValueError, "batch_size is 161; it must be from 1 to 160"),
        ("max_cached_messages", 0, ValueError, "max_cached_messages is 0"),
        ("max_cached_bytes", "1 MiB", TypeError, "max_cached_bytes is '1 MiB'"),
        ("commit_interval", 0, ValueError, "commit_interval is 0"),
        ("commit_interval", "5s", TypeError, "commit_interval is '5s'"),
    ],
)
@pytest.mark.parametrize("consumer", [PullConsumer, aio.PullConsumer])
def test_a_wrong_option(consumer: Any, option: str, given: Any, kind: type[Exception], sentence: str) -> None:
    options = {"group": "g", option: given}
    with pytest.raises(kind, match=sentence):
        consumer("127.0.0.1:1", **options)


def test_it_shows_who_it_is() -> None:
    for kind in (PullConsumer, aio.PullConsumer):
        consumer = kind("127.0.0.1:1", "g")
        assert repr(consumer).endswith("PullConsumer 127.0.0.1:1 group='g' not connected>")
        assert (consumer.group, consumer.assignment, consumer.healthy) == ("g", [], False)
        assert "@" in consumer.client_id
