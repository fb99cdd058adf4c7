"""Message ids of version 1: the layout of protocol 4.4, and nothing twice."""

from __future__ import annotations

import os
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popclient._session.message_id import EPOCH_2021, MessageId, encode, new_message_id

parts = st.builds(
    MessageId,
    mac=st.integers(0, 2**48 - 1),
    process_id=st.integers(0, 2**16 - 1),
    seconds=st.integers(0, 2**32 - 1),
    sequence=st.integers(0, 2**32 - 1),
)


def decode(text: str) -> MessageId | None:
    """The parts of an id, or None when it is not of version 1 (then it is opaque)."""
    if len(text) != 34 or not text.startswith("01"):
        return None
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        return None
    if len(raw) != 17:
        return None
    fields = (raw[1:7], raw[7:9], raw[9:13], raw[13:17])
    return MessageId(*(int.from_bytes(f, "big") for f in fields))


@given(parts)
def test_what_is_encoded_is_decoded(made: MessageId) -> None:
    text = encode(made)
    assert re.fullmatch(r"01[0-9A-F]{32}", text)
    assert decode(text) == made


@given(parts, parts)
def test_ids_of_one_process_sort_by_time(one: MessageId, other: MessageId) -> None:
    earlier, later = sorted((one.seconds, other.seconds))
    first = encode(one._replace(seconds=earlier, sequence=0))
    assert first <= encode(one._replace(seconds=later, sequence=2**32 - 1))


@given(st.text(max_size=40))
def test_anything_else_is_opaque(text: str) -> None:
    found = decode(text)
    assert found is None or encode(found) == text.upper()


@pytest.mark.parametrize("text", ["", "01", "02" + "0" * 32, "01" + "G" * 32, "01" + "0" * 30 + "  "])
def test_not_version_one(text: str) -> None:
    assert decode(text) is None


def test_a_new_id_tells_process_and_time() -> None:
    found = decode(new_message_id())
    assert found is not None
    assert found.process_id == os.getpid() & 0xFFFF
    assert abs(found.seconds + EPOCH_2021 - time.time()) < 60


def test_threads_never_draw_the_same() -> None:
    with ThreadPoolExecutor(8) as pool:
        drawn = [i for ids in pool.map(lambda _: [new_message_id() for _ in range(2000)], range(8)) for i in ids]
    assert len(set(drawn)) == len(drawn)


@pytest.mark.filterwarnings("ignore:This process")
def test_a_forked_child_draws_others() -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, "\n".join(new_message_id() for _ in range(100)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        theirs = set(pipe.read().split())
    ours = {new_message_id() for _ in range(100)}
    assert len(theirs) == 100
    assert not ours & theirs
    assert {text[:18] for text in ours}.isdisjoint(text[:18] for text in theirs)
