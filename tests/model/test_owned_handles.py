"""Attempt ids belong to their callers, transaction ids to their messages; and edges of receipt and recall handles."""

from __future__ import annotations

import base64
import zlib

import pytest

from popserver.model import handles
from popserver.model.errors import BadRequest
from popserver.model.handles import RecallHandle, Receipt

MESSAGE = bytes(range(17))
DRAWN = b"12345678"


def test_a_client_finds_its_attempt_id_again() -> None:
    kept = handles.attempt_of_client("client", "attempt")
    assert kept is not None
    assert kept != handles.attempt_of_client("client2", "attempt")
    assert handles.attempt_as_sent(kept) == "attempt"
    assert handles.attempt_of_client("client", None) is None


def test_what_is_stored_is_read_by_servers_of_other_versions() -> None:
    assert handles.attempt_of_client("client", "attempt") == "client\nattempt"
    assert handles.attempt_of_user("ann", "attempt") == "\nann\nattempt"
    assert handles.NO_HOLD == 0


@pytest.mark.parametrize("user", ["", "ann"])
def test_an_attempt_id_of_a_user_is_no_clients(user: str) -> None:
    kept = handles.attempt_of_user(user, "attempt")
    assert handles.attempt_as_sent(kept) == "attempt"
    assert kept != handles.attempt_of_client(user, "attempt")


def test_a_transaction_id_is_eight_random_bytes_and_a_digest_of_four() -> None:
    """Also of servers of other versions on the same database, so it is written out."""
    transaction_id = handles.transaction_id_of(5, MESSAGE, DRAWN)
    assert transaction_id == "313233343536373804E66450"
    assert handles.is_transaction_of(transaction_id, 5, MESSAGE)


@pytest.mark.parametrize(
    "transaction_id, topic_id, message_id",
    [
        (handles.transaction_id_of(5, MESSAGE, DRAWN), 6, MESSAGE),
        (handles.transaction_id_of(5, MESSAGE, DRAWN), 5, MESSAGE[::-1]),
        (handles.transaction_id_of(5, MESSAGE, DRAWN)[:-1] + "z", 5, MESSAGE),
        (handles.transaction_id_of(5, MESSAGE, DRAWN).lower(), 5, MESSAGE),
        ("no hexadecimal", 5, MESSAGE),
        ("", 5, MESSAGE),
    ],
)
def test_another_messages_transaction_id_is_known_for_it(transaction_id: str, topic_id: int, message_id: bytes) -> None:
    assert not handles.is_transaction_of(transaction_id, topic_id, message_id)


def test_a_message_id_without_bits_still_has_a_mark() -> None:
    """0 means that a handle has no bits of an id, so an id whose bits are all 0 is marked by 1."""
    message_id = next(each for each in map(str, range(200_000)) if not zlib.crc32(each.encode()) & 0x7FFF)
    handle = handles.encode_receipt(Receipt(1, 2, 3, 4), message_id)
    assert handles.decode_receipt(handle).id_bits == 1
    assert handles.decode_receipt(handle, message_id) == Receipt(1, 2, 3, 4, id_bits=1)


RECALL = RecallHandle("t", "b", 77, "m")


def forged(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode()


def test_the_limits_of_a_recall_handle() -> None:
    longest = forged("v1 t b 77 " + "m" * (2_048 // 4 * 3 - 10))
    assert len(longest) == 2_048
    assert handles.decode_recall(longest).deliver_at_ms == 77
    for handle, words in ((longest + "QQ==", "2052 characters"), ("", "0 characters")):
        with pytest.raises(BadRequest, match=words):
            handles.decode_recall(handle)


def test_a_delivery_time_has_at_most_15_digits() -> None:
    assert handles.decode_recall(forged(f"v1 t b {'9' * 15} m")).deliver_at_ms == 10**15 - 1
    with pytest.raises(BadRequest, match="is not a delivery time"):
        handles.decode_recall(forged(f"v1 t b {'9' * 16} m"))


def test_a_recall_handle_with_other_characters_is_refused() -> None:
    handle = handles.encode_recall(RECALL)
    assert handles.decode_recall(handle) == RECALL
    with pytest.raises(BadRequest, match="malformed"):
        handles.decode_recall(f"{handle[:8]}!{handle[8:]}")
