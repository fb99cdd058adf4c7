"""Frames of RocketMQ's remoting protocol: written and read back, and bytes that are none."""

from __future__ import annotations

import contextlib
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popclient.remoting.frames import FRAME_MAX, PREFIX_BYTES, Frame, MalformedFrame, decode, encode, length_of

pytestmark = pytest.mark.row("O9")

INTS = st.integers(-(2**31), 2**31 - 1)
TEXTS = st.text(st.characters(codec="utf-8"))
FRAMES = st.builds(
    Frame,
    code=INTS,
    opaque=INTS,
    fields=st.dictionaries(TEXTS, TEXTS),
    body=st.binary(),
    is_answer=st.booleans(),
    remark=TEXTS,
)


def content(header: bytes, kind: int = 0) -> bytes:
    return struct.pack(">I", kind << 24 | len(header)) + header


@given(FRAMES)
def test_what_was_written_is_read(frame: Frame) -> None:
    written = encode(frame)
    assert length_of(written[:PREFIX_BYTES]) == len(written) - PREFIX_BYTES
    assert decode(written[PREFIX_BYTES:]) == frame


@given(st.binary())
def test_other_bytes_raise_one_error(written: bytes) -> None:
    with pytest.raises(MalformedFrame):
        decode(written)


@given(FRAMES, st.data())
def test_a_damaged_frame_raises_that_error_or_is_another_frame(frame: Frame, data: st.DataObject) -> None:
    written = bytearray(encode(frame)[PREFIX_BYTES:])
    at = data.draw(st.integers(0, len(written) - 1))
    written[at] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(MalformedFrame):
        assert isinstance(decode(bytes(written)), Frame)


@pytest.mark.parametrize(
    ("header", "word"),
    [
        (b"", "no JSON"),
        (b"nonsense", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[1]", "no JSON object"),
        (b'{"opaque":1,"flag":1}', "code"),
        (b'{"code":"0","opaque":1,"flag":1}', "code"),
        (b'{"code":0,"opaque":true,"flag":1}', "opaque"),
        (b'{"code":0,"opaque":1,"flag":1,"remark":7}', "remark"),
        (b'{"code":0,"opaque":1,"flag":1,"extFields":[]}', ""),
        (b'{"code":0,"opaque":1,"flag":1,"extFields":{"offset":7}}', "fields"),
    ],
)
def test_a_header_of_another_kind(header: bytes, word: str) -> None:
    if not word:
        assert decode(content(header)) == Frame(0, 1, is_answer=True)
        return
    with pytest.raises(MalformedFrame, match=word):
        decode(content(header))


def test_a_header_in_rocketmqs_binary_form_is_named() -> None:
    with pytest.raises(MalformedFrame, match="form 1, and not as JSON"):
        decode(content(b"\0\0\0\0", kind=1))


def test_a_header_longer_than_its_frame() -> None:
    with pytest.raises(MalformedFrame, match="16,777,215 bytes, in a frame of 4"):
        decode(b"\0\xff\xff\xff")


@pytest.mark.parametrize("length", [0, 1, 4, FRAME_MAX + 1, 2**32 - 1])
def test_lengths_that_no_frame_has(length: int) -> None:
    with pytest.raises(MalformedFrame, match=f"{length:,} bytes"):
        length_of(struct.pack(">I", length))


def test_a_request_that_is_too_long_is_not_sent() -> None:
    with pytest.raises(MalformedFrame, match="longer than 16,777,216"):
        encode(Frame(200, 1, body=b"x" * FRAME_MAX))


def test_what_rocketmq_reads() -> None:
    written = encode(Frame(105, 7, {"topic": "orders"}, b"body"))
    (length,) = struct.unpack(">I", written[4:8])
    header = json.loads(written[8 : 8 + length])
    assert (header["code"], header["opaque"], header["flag"], header["language"]) == (105, 7, 0, "PYTHON")
    assert header["extFields"] == {"topic": "orders"}
    assert written[8 + length :] == b"body"
