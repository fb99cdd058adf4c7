"""Header blocks: decoded as hpack's own encoder wrote them, and refused when they break a rule."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from popserver.http2 import headers
from popserver.http2.frames import ConnectionFailure, ErrorCode, StreamFailure
from popserver.http2.headers import FIELDS_BYTES_MAX, TABLE_BYTES, HeaderDecoder, are_trailers, request_head

NAMES = st.text(st.sampled_from("abcdefghijklmnopqrstuvwxyz0123456789-"), min_size=1, max_size=30)
VALUES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=150)
FIELDS = st.lists(st.tuples(st.one_of(NAMES, st.sampled_from(["content-type", "te", "x-mq-client-id"])), VALUES))
REQUEST = [(":method", "POST"), (":scheme", "http"), (":path", "/a/B")]


def told(decoder: HeaderDecoder, block: bytes) -> list[tuple[str, str]]:
    fields = decoder.decode(block)
    assert fields is not None
    return [(each.name, each.value) for each in fields]


@given(st.lists(st.tuples(FIELDS, st.booleans()), max_size=8))
def test_what_an_encoder_wrote_is_read(blocks: list[tuple[list[tuple[str, str]], bool]]) -> None:
    """The table of previous fields is the same on both sides, whatever was inserted and evicted."""
    encoder, decoder = hpack.Encoder(), HeaderDecoder()
    for fields, huffman in blocks:
        assert told(decoder, encoder.encode(fields, huffman=huffman)) == fields


@given(st.lists(st.tuples(st.integers(0, TABLE_BYTES), FIELDS), max_size=6))
def test_a_client_may_shrink_its_table(blocks: list[tuple[int, list[tuple[str, str]]]]) -> None:
    encoder, decoder = hpack.Encoder(), HeaderDecoder()
    for size, fields in blocks:
        encoder.header_table_size = size
        assert told(decoder, encoder.encode(fields)) == fields


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",  # an index of 0
        b"\xff\x00",  # an index of 127, where nothing is
        b"\x40\x05abc",  # a name of 5 bytes, and 3 are there
        b"\x40",  # nothing behind the first byte
        b"\x3f\xe2\x1f",  # a table of 4,097 bytes
        b"\x82\x20",  # a table size behind a field
        b"\x40\xff\xff\xff\xff\xff\x0f",  # a string of 2^35 bytes
        b"\xff\xff\xff\xff\xff\xff\xff\xff\x00",
        b"\x00\x81\x00\x01a",  # a name that ends in the middle of a Huffman code
    ],
)
def test_what_cannot_be_decoded_ends_the_connection(block: bytes) -> None:
    with pytest.raises(ConnectionFailure) as failure:
        HeaderDecoder().decode(block)
    assert failure.value.code is ErrorCode.COMPRESSION_ERROR


def test_too_many_fields_are_dropped_and_the_table_stays_right() -> None:
    """A small block can stand for many bytes: it refers to one large field again and again."""
    encoder, decoder = hpack.Encoder(), HeaderDecoder()
    large = encoder.encode([("x-large", "v" * 3_000)])
    again = encoder.encode([("x-large", "v" * 3_000)])
    assert len(again) == 1
    assert decoder.decode(large + again * (FIELDS_BYTES_MAX // 3_000)) is None
    assert request_head(None).is_too_long
    assert told(decoder, encoder.encode([("x-next", "1"), ("x-large", "v" * 3_000)])) == [
        ("x-next", "1"),
        ("x-large", "v" * 3_000),
    ]
    with pytest.raises(ConnectionFailure) as failure:
        decoder.decode(again * 5_000)
    assert failure.value.code is ErrorCode.ENHANCE_YOUR_CALM


def head_of(*fields: tuple[str, str]) -> headers.RequestHead:
    return request_head(HeaderDecoder().decode(hpack.Encoder().encode(fields)))


def test_the_fields_of_a_request() -> None:
    head = head_of(*REQUEST, ("te", "trailers"), ("x-a", "1"), ("x-a", "2"), ("content-length", "12"))
    assert (head.method, head.path, head.fields["x-a"], head.content_length) == ("POST", "/a/B", "2", 12)
    assert head_of(*REQUEST).content_length is None


@pytest.mark.parametrize(
    "fields",
    [
        REQUEST[:2],
        [*REQUEST, (":path", "/again")],
        [*REQUEST, (":status", "200")],
        [("x-a", "1"), *REQUEST],
        [*REQUEST, ("Upper", "1")],
        [*REQUEST, ("with space", "1")],
        [*REQUEST, ("connection", "close")],
        [*REQUEST, ("te", "gzip")],
    ],
)
def test_a_request_that_breaks_a_rule_ends(fields: list[tuple[str, str]]) -> None:
    with pytest.raises(StreamFailure) as failure:
        head_of(*fields)
    assert failure.value.code is ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize("length", ["-1", "1e3", "", "1" * 20, "²"])
def test_a_length_that_is_no_number_ends_the_request(length: str) -> None:
    with pytest.raises(StreamFailure):
        _ = headers.RequestHead("POST", "/", {"content-length": length}).content_length


def test_trailers_have_no_pseudo_headers() -> None:
    decoder = HeaderDecoder()
    assert are_trailers(decoder.decode(hpack.Encoder().encode([("x-sum", "1")])))
    assert not are_trailers(decoder.decode(b"\x84"))


@given(st.integers(0, 16), st.text(max_size=400))
def test_any_decoder_reads_a_status(code: int, sentence: str) -> None:
    fields: dict[Any, Any] = dict(hpack.Decoder().decode(headers.OK + headers.trailers(code, sentence)))
    assert (fields[":status"], fields["grpc-status"]) == ("200", str(code))
    if sentence:
        assert unquote(fields["grpc-message"]) == sentence
