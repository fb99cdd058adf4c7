"""Recall handles: there and back, and nothing else."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popserver.model.errors import BadRequest
from popserver.model.handles import RecallHandle, decode_recall, encode_recall

WORDS = st.text(alphabet=st.characters(codec="utf-8", exclude_characters=" "), max_size=50)


@given(
    st.builds(
        RecallHandle, WORDS, WORDS, st.integers(0, 253_402_300_799_999), st.text(max_size=80).filter(str.isprintable)
    )
)
def test_there_and_back(recall: RecallHandle) -> None:
    assert decode_recall(encode_recall(recall)) == recall


@given(st.text(max_size=200))
def test_anything_else_is_refused_in_a_sentence(text: str) -> None:
    try:
        decode_recall(text)
    except BadRequest as refusal:
        assert "recall handle" in refusal.sentence


def test_a_message_id_is_told_another_way() -> None:
    with pytest.raises(BadRequest, match=r"is malformed .* or cancel the message by its id: popmq message cancel"):
        decode_recall("0102FC0000000113D30B11FBFF754543C7")


def test_an_id_may_hold_a_blank() -> None:
    assert decode_recall(encode_recall(RecallHandle("t", "b", 1, "a b c"))).message_id == "a b c"


@pytest.mark.parametrize("time", ["-1", "1.5", "", "١٢", "0x1"])
def test_a_time_is_digits(time: str) -> None:
    handle = encode_recall(RecallHandle("t", "b", 77, "m"))
    forged = urlsafe_b64encode(urlsafe_b64decode(handle).replace(b" 77 ", f" {time} ".encode())).decode()
    with pytest.raises(BadRequest, match="not a delivery time"):
        decode_recall(forged)
