"""What mode `queue` can be told, and how it plans; no Spark and no server needed."""

from __future__ import annotations

import pickle
import zlib
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")

from popclient import Tls
from popclient.message import MessageQueue
from popclient.spark.bodies import UNPACKED_BYTES_MAX
from popclient.spark.message_columns import body_of
from popclient.spark.options import OptionReader, server_of
from popclient.spark.queue.offsets import (
    MESSAGES_PER_PARTITION,
    QueueOffsets,
    Range,
    fair_shares,
    partitioned,
    ranges,
    read,
    written,
)
from popclient.spark.queue.options import EARLIEST, LATEST, Bound, parse
from popproto.v2 import definition_pb2 as pb
from pyspark_popmq import DefaultSource

NEEDED = {"endpoints": "127.0.0.1:8081", "topic": "flights", "consumerGroup": "reports"}
A, B, C = (MessageQueue("flights", number) for number in range(3))


def refused(**options: str) -> str:
    with pytest.raises(ValueError) as refusal:
        parse({**NEEDED, **options})
    return str(refusal.value)


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("startingOffsets", "first", "earliest, latest"),
        ("startingOffsets", '{"flights": 3}', "earliest, latest"),
        ("startingOffsets", '{"flights": {"0": -3}}', "earliest, latest"),
        ("startingOffsets", '{"flights": {"0": true}}', "earliest, latest"),
        ("startingOffsets", '{"flights": {"x": 1}}', "earliest, latest"),
        ("endingOffsets", "[]", "earliest, latest"),
        ("startingTimestamp", "yesterday", "epoch milliseconds"),
        ("endingTimestamp", "2013-02-08T00:00:00", "with its zone"),
        ("maxOffsetsPerTrigger", "0", "a whole number from 1"),
        ("maxOffsetsPerTrigger", "1e3", "a whole number from 1"),
        ("minPartitions", "1001", "from 1 to 1000"),
        ("failOnDataLoss", "no", "true or false"),
        ("filterType", "REGEX", "TAG or SQL92"),
        ("columns", "pulsar", "popmq or kafka"),
        ("includeHeaders", "true", "columns=kafka"),
        ("requestTimeout", "soon", "a duration such as 500ms"),
        ("requestTimeout", "1ms", "from 100 ms"),
        ("topicsPattern", "(", "a regular expression"),
        ("topic", " ", "it is blank"),
        ("topic", "a,,b", "one of the names is blank"),
        ("tls", "yes", "off or on or insecure"),
        ("colour", "red", "allowed are mode, endpoints"),
    ],
)
def test_a_refusal_names_the_option_its_value_and_what_is_allowed(option: str, value: str, allowed: str) -> None:
    said = refused(**{option: value})
    assert f"option {option}={value!r}" in said or f"option {option.lower()}={value!r}" in said
    assert allowed in said


@pytest.mark.parametrize(
    ("option", "meant"),
    [
        ("kafka.bootstrap.servers", "endpoints"),
        ("bootstrap.servers", "endpoints"),
        ("nameServer", "endpoints"),
        ("kafka.group.id", "consumerGroup"),
        ("groupIdPrefix", "consumerGroup"),
        ("assign", "topic"),
        ("topics", "topic"),
        ("startingOffsetsByTimestamp", "startingTimestamp"),
        ("minOffsetsPerTrigger", "maxOffsetsPerTrigger"),
        ("kafka.sasl.password", "accessSecret"),
        ("startingOfsets", "startingOffsets"),
        ("numPartitions", "minPartitions"),
    ],
)
def test_names_of_other_sources_are_recognized(option: str, meant: str) -> None:
    said = refused(**{option: "x"})
    assert f"option {option.lower()}=" in said
    assert f"is unknown; did you mean {meant}? allowed are" in said


@pytest.mark.parametrize("options", [{"kafka.bootstrap.servers": "h:1", "subscribe": "a"}, {"endpoint": "h:1"}])
def test_without_the_server_a_name_of_another_source_is_recognized_too(options: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"is unknown; did you mean endpoints\?"):
        DefaultSource(options).schema()


def test_two_names_of_one_option_may_not_differ() -> None:
    assert parse({**NEEDED, "subscribe": "flights"}).topics == ("flights",)
    assert "option subscribe='hotels' says otherwise than topic='flights'" in refused(subscribe="hotels")


@pytest.mark.parametrize(("given", "lacks"), [("accessKey", "accessSecret"), ("accessSecret", "accessKey")])
def test_half_of_a_signature_is_refused(given: str, lacks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROCKETMQ_ACCESS_KEY", "ROCKETMQ_ACCESS_SECRET"):
        monkeypatch.delenv(name, raising=False)
    said = refused(**{given: "hush"})
    assert said.startswith(f"option {lacks} is missing, and without it {given} signs no call; give both")
    assert "hush" not in said
    monkeypatch.setenv({"accessKey": "ROCKETMQ_ACCESS_KEY", "accessSecret": "ROCKETMQ_ACCESS_SECRET"}[lacks], "other")
    assert parse({**NEEDED, given: "hush"}).server.access_secret in ("hush", "other")


def test_a_batch_needs_no_group_and_a_stream_one_of_its_own() -> None:
    options = parse({name: value for name, value in NEEDED.items() if name != "consumerGroup"})
    options.refuse_in_a_batch()
    assert options.group == "popmq-spark"
    with pytest.raises(ValueError, match="option consumerGroup is missing; give a group that no other query has"):
        options.refuse_in_a_stream()


@pytest.mark.parametrize("missing", ["endpoints", "topic"])
def test_what_is_needed(missing: str) -> None:
    with pytest.raises(ValueError, match=f"option {missing} is missing; give"):
        parse({name: value for name, value in NEEDED.items() if name != missing})


def test_two_ways_to_say_where_to_begin_exclude_each_other() -> None:
    assert "or startingTimestamp" in refused(startingOffsets="earliest", startingTimestamp="0")
    assert "topicsPattern" in refused(topicsPattern="f.*")


def test_names_in_any_case_and_their_aliases() -> None:
    options = parse(
        {
            "ENDPOINTS": "h:1",
            "subscribe": "a, b,a",
            "consumergroup": "g",
            "maxMessagesPerTrigger": "7",
            "subExpression": "UA || DL",
        }
    )
    assert options.topics == ("a", "b")
    assert options.max_offsets_per_trigger == 7
    assert options.expression.expression == "UA || DL"


def test_bounds() -> None:
    options = parse(
        {**NEEDED, "startingOffsets": '{"flights": {"0": 12, "1": -1}}', "endingTimestamp": "1970-01-01T00:00:01Z"}
    )
    assert options.starting == Bound(EARLIEST, {A: 12, B: LATEST})
    assert options.ending == Bound(LATEST, {}, 1_000)


def test_a_secret_is_in_no_error_and_in_no_repr() -> None:
    options = parse({**NEEDED, "accessKey": "ali", "accessSecret": "hush-hush", "sessionToken": "tick-tock"})
    assert options.server.access_secret == "hush-hush"
    assert "hush" not in repr(options)
    assert "tick" not in repr(options)
    for option in ("accessSecret", "sessionToken"):
        said = refused(**{option: "hush\nhush", "namespace": "ü"})
        assert "hush" not in said
    with pytest.raises(ValueError, match=r"clientsecret=\*\*\*") as refusal:
        OptionReader({"clientSecret": "hush-hush"}).refuse_others(["endpoints"])
    assert "hush" not in str(refusal.value)


def test_endpoints_with_a_password_are_refused_without_it() -> None:
    said = refused(endpoints="postgresql://u:hunter2@h/db")
    assert "option endpoints='postgresql://***@h/db' is not allowed; give only the server's host:port" in said


def test_tls_from_files() -> None:
    given = OptionReader({"endpoints": "h:1", "tlsCa": "/ca.pem", "tlsServerName": "broker"})
    assert server_of(given).tls == Tls(ca="/ca.pem", server_name="broker")
    assert server_of(OptionReader({"endpoints": "h:1", "tls": "insecure"})).tls == Tls(insecure=True)
    assert server_of(OptionReader({"endpoints": "h:1"})).tls is False
    with pytest.raises(ValueError, match="option tls='off' is not allowed"):
        server_of(OptionReader({"endpoints": "h:1", "tls": "off", "tlsCa": "/ca.pem"}))


@pytest.mark.parametrize(
    ("text", "ms"), [("500ms", 500), ("10s", 10_000), ("1.5m", 90_000), ("2", 2_000), ("1 h", 3_600_000)]
)
def test_durations(text: str, ms: int) -> None:
    assert OptionReader({"pause": text}).duration_ms("pause", 0) == ms


# ---- Offsets ----


def test_an_offset_survives_the_checkpoint() -> None:
    place = QueueOffsets({B: 7, A: 3}, {B: 5})
    assert written(place) == {"v": 1, "q": {"flights/0": 3, "flights/1": 7}, "begun": {"flights/1": 5}}
    assert read(written(place)) == place
    known = place._replace(created={"flights": 1_360_281_600_000})
    assert written(known)["created"] == {"flights": 1_360_281_600_000}
    assert read(written(known)) == known


@pytest.mark.parametrize(
    "strange",
    [{"v": 2, "q": {}}, {"seq": 3}, {"v": 1, "q": {"flights": 1}}, {"v": 1, "q": [1]}, {"v": 1, "q": {}, "created": 3}],
)
def test_a_checkpoint_of_another_source_is_refused(strange: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="checkpointLocation of its own"):
        read(strange)


def test_a_batch_follows_from_its_two_offsets() -> None:
    """New queues begin where the end says that they began; what has lost messages goes on there."""
    start, end = QueueOffsets({A: 3, B: 9}), QueueOffsets({A: 3, B: 12, C: 8}, {B: 10, C: 5})
    assert ranges(start, end) == [Range(B, 10, 12), Range(C, 5, 8)]
    assert ranges(end, end._replace(begun={})) == []


# ---- Plans ----


def test_shares_are_fair() -> None:
    assert fair_shares({A: 900, B: 90, C: 10}, 100) == {A: 90, B: 9, C: 1}
    assert fair_shares({A: 5, B: 0}, 100) == {A: 5}
    assert fair_shares({A: 1_000_000, B: 1}, 10) == {A: 9, B: 1}


def test_no_queue_waits_for_ever() -> None:
    assert fair_shares({A: 1_000, B: 1, C: 1}, 2) == {A: 1, B: 1, C: 1}


@pytest.mark.parametrize("limit", [1, 7, 64, 999, 1_000, 5_000])
def test_shares_add_up(limit: int) -> None:
    backlog = {MessageQueue("flights", number): (number * 37) % 100 for number in range(20)}
    shares = fair_shares(backlog, limit)
    waiting = sum(count > 0 for count in backlog.values())
    assert sum(shares.values()) == min(max(limit, waiting), sum(backlog.values()))
    assert all(0 < share <= backlog[queue] for queue, share in shares.items())


def test_partitions_are_few_and_large() -> None:
    small = [Range(A, 0, 10), Range(B, 5, 15)]
    assert partitioned(small, 1) == [tuple(small)]
    large = [Range(A, 0, MESSAGES_PER_PARTITION), Range(B, 0, MESSAGES_PER_PARTITION)]
    assert partitioned(large, 1) == [(large[0],), (large[1],)]
    assert partitioned([], 8) == []


def test_more_partitions_split_large_ranges() -> None:
    parts = partitioned([Range(A, 100, 1_100), Range(B, 0, 10)], 4)
    assert len(parts) == 4
    offsets = [(each.queue, offset) for part in parts for each in part for offset in range(each.start, each.end)]
    assert len(offsets) == len(set(offsets)) == 1_010
    assert len(partitioned([Range(A, 0, 3)], 100)) == 3


# ---- Messages ----


def test_a_body_that_does_not_unpack_comes_as_it_is() -> None:
    packed = pb.SystemProperties(body_encoding=pb.GZIP)
    assert body_of(pb.Message(body=zlib.compress(b"hello"), system_properties=packed)) == b"hello"
    for body in (b"no gzip", zlib.compress(b"hello")[:-3], zlib.compress(bytes(UNPACKED_BYTES_MAX + 1))):
        assert body_of(pb.Message(body=body, system_properties=packed)) == body


def test_options_travel_to_the_workers() -> None:
    options = parse({**NEEDED, "columns": "kafka", "tlsCa": "/ca.pem"})
    assert pickle.loads(pickle.dumps(options)) == options
