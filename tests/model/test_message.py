"""Every limit of a message, at its edge (protocol 4.2)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popserver.model.errors import (
    BadRequest,
    IllegalMessageGroup,
    IllegalMessageId,
    IllegalMessageKey,
    IllegalMessagePropertyKey,
    IllegalMessageTag,
    MessageBodyEmpty,
    MessageBodyTooLarge,
    MessagePropertiesTooLarge,
    PopError,
)
from popserver.model.message import RESERVED_PROPERTIES, check, check_message_group, id_from_bytes, id_to_bytes
from tests.support.builders import a_message

MIB = 1024 * 1024
ID_V1 = "01" + "0AF3" * 8


@pytest.mark.parametrize(
    "legal",
    [
        {},
        {"body": b"\x00"},
        {"body": bytes(4 * MIB)},
        {"message_id": "x"},
        {"message_id": "x" * 255},
        {"message_id": "订单 1"},
        {"tag": "A"},
        {"tag": "订单"},
        {"tag": "x" * 16_384},
        {"keys": ("k", "a b", "订")},
        {"keys": ("k" * 8_192, "l" * 8_192)},
        {"properties": {f"p{n}": "v" for n in range(128)}},
        {"properties": {"p": "v" * 16_383}},
        {"properties": {"p": ""}},
        {"properties": {"p": "é" * 8_191}, "tag": "x"},
        {"properties": {"__SHARDINGKEY": "v", "keys": "v"}},
    ],
)
def test_what_may_be_sent(legal: dict[str, Any]) -> None:
    check(a_message(**legal))


@pytest.mark.row("M1")
@pytest.mark.parametrize(
    ("illegal", "refusal", "says"),
    [
        ({"body": b""}, MessageBodyEmpty, "empty"),
        ({"body": bytes(4 * MIB + 1)}, MessageBodyTooLarge, "4194305 bytes, at most 4194304"),
        ({"message_id": ""}, IllegalMessageId, "blank"),
        ({"message_id": " \t"}, IllegalMessageId, "blank"),
        ({"message_id": "x" * 256}, IllegalMessageId, "256 characters, at most 255"),
        ({"message_id": "a\x00b"}, IllegalMessageId, "zero byte"),
        ({"tag": ""}, IllegalMessageTag, "blank"),
        ({"tag": " "}, IllegalMessageTag, "blank"),
        ({"tag": "a|b"}, IllegalMessageTag, r"'a\|b' has '\|'"),
        ({"tag": "a\nb"}, IllegalMessageTag, "control"),
        ({"tag": "a\x85b"}, IllegalMessageTag, "control"),
        ({"keys": ("k", "")}, IllegalMessageKey, "blank"),
        ({"keys": ("k", "\u3000")}, IllegalMessageKey, "blank"),
        ({"keys": ("a\x7f",)}, IllegalMessageKey, "control"),
        ({"properties": {f"p{n}": "v" for n in range(129)}}, MessagePropertiesTooLarge, "129 properties, at most 128"),
        ({"properties": {"": "v"}}, IllegalMessagePropertyKey, "blank"),
        ({"properties": {"a\x01": "v"}}, IllegalMessagePropertyKey, "control"),
        ({"properties": {"a": "v\x01"}}, IllegalMessagePropertyKey, "value of property 'a'"),
        ({"properties": {"p": "v" * 16_384}}, MessagePropertiesTooLarge, "16385 bytes together, at most 16384"),
        ({"properties": {"p": "é" * 8_192}}, MessagePropertiesTooLarge, "16385 bytes"),
        ({"properties": {"p": "v" * 16_383}, "tag": "x"}, MessagePropertiesTooLarge, "16385 bytes"),
        ({"properties": {"p": "v" * 16_383}, "keys": ("k",)}, MessagePropertiesTooLarge, "16385 bytes"),
        ({"tag": "x" * 16_385}, MessagePropertiesTooLarge, "16385 bytes"),
        ({"priority": -1}, BadRequest, "the priority is -1, allowed: 0 to 32767"),
        ({"priority": 32_768}, BadRequest, "the priority is 32768"),
    ],
)
def test_what_may_not_be_sent(illegal: dict[str, Any], refusal: type[PopError], says: str) -> None:
    with pytest.raises(refusal, match=says):
        check(a_message(**illegal))


def test_the_systems_own_names_are_no_user_properties() -> None:
    assert len(RESERVED_PROPERTIES) == 51
    for name in RESERVED_PROPERTIES:
        with pytest.raises(IllegalMessagePropertyKey, match="reserved"):
            check(a_message(properties={name: "v"}))


@pytest.mark.parametrize("legal", ["g", "x" * 63, "é" * 31])
def test_a_message_group_that_may_be(legal: str) -> None:
    check_message_group(legal)


@pytest.mark.parametrize(
    ("illegal", "says"),
    [("", "blank"), ("  ", "blank"), ("x" * 64, "64 bytes, at most 63"), ("é" * 32, "64 bytes"), ("a\x00", "control")],
)
def test_a_message_group_that_may_not_be(illegal: str, says: str) -> None:
    with pytest.raises(IllegalMessageGroup, match=says):
        check_message_group(illegal)


def test_an_id_of_the_v1_layout_takes_17_bytes() -> None:
    assert id_to_bytes(ID_V1) == bytes.fromhex(ID_V1)
    assert id_to_bytes(ID_V1.lower())[:1] == b"\x00"


@given(st.text(st.characters(exclude_categories=["Cs"])) | st.from_regex(r"0[01][0-9A-Fa-f]{32}", fullmatch=True))
def test_an_id_comes_back_as_it_was(message_id: str) -> None:
    assert id_from_bytes(id_to_bytes(message_id)) == message_id


@given(*[st.from_regex(r"\x00?(01)?[0-9A-Fa-f]{0,4}", fullmatch=True) | st.just(ID_V1) | st.just(ID_V1.lower())] * 2)
def test_two_ids_never_share_their_bytes(one: str, other: str) -> None:
    assert (id_to_bytes(one) == id_to_bytes(other)) == (one == other)
