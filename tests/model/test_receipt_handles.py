"""Receipt handles are opaque, and whatever was not made here is refused."""

from __future__ import annotations

import base64
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popserver.model import handles
from popserver.model.errors import InvalidReceiptHandle
from popserver.model.handles import Receipt

INT64 = st.integers(-(2**63), 2**63 - 1)
TIMES, BITS = st.integers(0, 2**48 - 1), st.integers(0, 2**15 - 1)
RECEIPTS = st.builds(Receipt, st.integers(0, 2**32 - 1), INT64, INT64, TIMES, st.booleans(), BITS)
VERSIONS = {1, 2}  # the second one of a message in a message group


@pytest.mark.row("O3")
@given(RECEIPTS)
def test_a_receipt_comes_back_as_it_was(given_receipt: Receipt) -> None:
    handle = handles.encode_receipt(given_receipt)
    assert len(handle) == 40
    assert handles.decode_receipt(handle) == given_receipt


@given(RECEIPTS, RECEIPTS)
def test_different_holds_have_different_handles(one: Receipt, other: Receipt) -> None:
    assert (handles.encode_receipt(one) == handles.encode_receipt(other)) == (one == other)


@given(st.text() | st.text(st.characters(max_codepoint=127), min_size=40, max_size=40))
def test_garbage_is_refused_by_name(garbage: str) -> None:
    try:
        read = handles.decode_receipt(garbage)
    except InvalidReceiptHandle as refusal:
        assert refusal.sentence.startswith(f"receipt handle '{garbage[:48]}' is malformed: ")
    else:
        assert handles.decode_receipt(handles.encode_receipt(read)) == read


@given(RECEIPTS, st.sampled_from(sorted(set(range(256)) - VERSIONS)))
def test_another_version_is_refused(given_receipt: Receipt, version: int) -> None:
    packed = base64.b64decode(handles.encode_receipt(given_receipt))
    other = base64.b64encode(bytes([version]) + packed[1:]).decode()
    with pytest.raises(InvalidReceiptHandle, match=f"version {version} instead of 1 or 2"):
        handles.decode_receipt(other)


@pytest.mark.parametrize("cut", [0, 1, 39, 41, 80])
def test_a_cut_handle_is_refused(cut: int) -> None:
    handle = (handles.encode_receipt(Receipt(1, 2, 3, 4)) * 2)[:cut]
    with pytest.raises(InvalidReceiptHandle, match=f"{cut} characters instead of 40"):
        handles.decode_receipt(handle)


@given(RECEIPTS, st.text(min_size=1).filter(str.strip), st.text())
def test_it_knows_the_message_it_was_given_with(given_receipt: Receipt, message_id: str, other: str) -> None:
    handle = handles.encode_receipt(given_receipt, message_id)
    held = handles.decode_receipt(handle)
    assert held[:5] == given_receipt[:5]
    assert handles.decode_receipt(handle, message_id) == handles.decode_receipt(handle, " ") == held
    if other.strip() and handles.decode_receipt(handles.encode_receipt(given_receipt, other)).id_bits != held.id_bits:
        with pytest.raises(InvalidReceiptHandle, match="was not given with message"):
            handles.decode_receipt(handle, other)


@given(st.text())
def test_the_handle_of_an_older_server_fits_any_message(message_id: str) -> None:
    """They are 29 bytes of a version, the group, the key, the hold and its end, and nothing of the message's id."""
    packed = struct.pack(">BIqqq", 1, 7, 5 << 40, -3, 1_800_000_000_000)
    old = handles.decode_receipt(base64.b64encode(packed).decode(), message_id)
    assert old == Receipt(7, 5 << 40, -3, 1_800_000_000_000)


@given(RECEIPTS)
def test_an_older_server_reads_a_later_end(given_receipt: Receipt) -> None:
    *_, end = struct.unpack(">BIqqq", base64.b64decode(handles.encode_receipt(given_receipt)))
    assert end >= given_receipt.ends_at_ms
