"""Receipt and recall handles and transaction ids: none that this server has not made is accepted as another one."""

from __future__ import annotations

import base64
import random
import re
import struct

from popserver.model.errors import BadRequest, InvalidReceiptHandle
from popserver.model.handles import (
    RecallHandle,
    Receipt,
    decode_recall,
    decode_receipt,
    encode_recall,
    encode_receipt,
    is_transaction_of,
    transaction_id_of,
)
from proof.fuzz.target import FuzzTarget, a_number, a_text, must, mutated

_PACKED = struct.Struct(">BIqqq")  # the layout of a receipt handle, as its comment says
_MESSAGE_ID = "01AABBCCDDEEFF0011223344556677889900"
_OTHER_ID = "01AABBCCDDEEFF0011223344556677889901"
_TOPIC_ID = 3
_TOPIC_IDS = (_TOPIC_ID, _TOPIC_ID + 1)
_DRAWN = bytes(range(8))
_OWN_TRANSACTION = transaction_id_of(_TOPIC_ID, _MESSAGE_ID.encode(), _DRAWN)
_TRANSACTION = re.compile("[0-9A-F]{24}")
_KINDS = b"RCT"


class HandlesTarget(FuzzTarget):
    """Input: a letter for what it claims to be (R receipt, C recall, T transaction), then its text."""

    name = "handles"

    def draw(self, dice: random.Random) -> bytes:
        kind = dice.choice(_KINDS)
        if kind == _KINDS[0]:
            handle = _a_receipt(dice)
        elif kind == _KINDS[1]:
            recall = RecallHandle(a_text(dice).replace(" ", ""), "b", dice.randrange(10**15), a_text(dice))
            handle = encode_recall(recall).encode()
            if dice.random() < 0.3:
                words = [a_text(dice), "t", "b", str(a_number(dice)), _MESSAGE_ID][: dice.randrange(6)]
                handle = base64.urlsafe_b64encode(" ".join(words).encode())
        else:
            handle = _OWN_TRANSACTION.encode()
        match dice.randrange(4):
            case 0:
                handle = dice.choice(
                    (handle + b"\n", b" " + handle, handle.replace(b"+", b"-"), handle.rstrip(b"="), handle.lower())
                )
            case 1 | 2:
                handle = mutated(handle, dice)
        return bytes([kind]) + handle

    def judge(self, data: bytes) -> int:
        text = data[1:].decode(errors="replace")
        match data[:1]:
            case b"C":
                return _judge_recall(text)
            case b"T":
                # A run that coverage guides finds others with the right 32 bits, also of the other topic.
                of = [topic for topic in _TOPIC_IDS if is_transaction_of(text, topic, _MESSAGE_ID.encode())]
                right = [topic for topic in _TOPIC_IDS if _is_transaction_of(text, topic)]
                must(of == right, f"transaction id {text!r} counts for topics {of}, not {right}")
                must(len(of) < 2, f"transaction id {text!r} is of another topic, too")
                return 1
        return _judge_receipt(text)


def _is_transaction_of(text: str, topic_id: int) -> bool:
    """The rule, for the message of this target."""
    drawn = bytes.fromhex(text[:16]) if _TRANSACTION.fullmatch(text) else b""
    return bool(drawn) and text == transaction_id_of(topic_id, _MESSAGE_ID.encode(), drawn)


def _a_receipt(dice: random.Random) -> bytes:
    if dice.random() < 0.3:
        fields = dice.randrange(256), dice.randrange(2**32), *(dice.randrange(-(2**63), 2**63) for _ in range(3))
        return base64.b64encode(_PACKED.pack(*fields))
    held = Receipt(dice.randrange(2**32), dice.randrange(2**63), dice.randrange(2**63), dice.randrange(2**48))
    return encode_receipt(held._replace(in_order=dice.random() < 0.5), _MESSAGE_ID).encode()


def _judge_receipt(text: str) -> int:
    try:
        found = decode_receipt(text)
    except InvalidReceiptHandle as refusal:
        must(len(refusal.sentence) < 400, "the refusal repeats too much of the handle")
        must(not _is_well_formed(text), f"{text!r} is refused, but it is well-formed")
        return 1
    must(_is_well_formed(text), f"{text!r} is accepted, but it is not well-formed")
    packed = _PACKED.unpack(base64.b64decode(text))
    must(tuple(found[:3]) == packed[1:4], f"{text!r} is read as {found}")
    must(0 <= found.ends_at_ms < 2**48 and found.in_order is (packed[0] == 2), f"{text!r} has an impossible end")
    if found.id_bits:
        accepted = 0
        for message_id in (_MESSAGE_ID, _OTHER_ID):
            try:
                decode_receipt(text, message_id)
                accepted += 1
            except InvalidReceiptHandle:
                pass
        must(accepted < 2, f"{text!r} is accepted for two messages")
    return 1


def _is_well_formed(text: str) -> bool:
    try:
        packed = base64.b64decode(text, validate=True)
    except ValueError:
        return False
    return len(text) == 40 and len(packed) == _PACKED.size and packed[0] in (1, 2)


def _judge_recall(text: str) -> int:
    try:
        found = decode_recall(text)
    except BadRequest as refusal:
        must(len(refusal.sentence) < 700, "the refusal repeats too much of the handle")
        return 0
    again = decode_recall(encode_recall(found))
    must(again == found and found.deliver_at_ms >= 0, f"{text!r} is read as {found}, and then as {again}")
    return 1
