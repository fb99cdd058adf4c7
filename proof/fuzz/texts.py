"""Offset files, notifications and authorization headers: texts that other programs write and this one reads."""

from __future__ import annotations

import hashlib
import hmac
import json
import random
import re
from typing import Any

from popclient.offset_file import OffsetFileTorn, dump_offsets, parse_offsets, parse_with_generations
from popserver.access import flow, rules
from popserver.database import notifications
from proof.fuzz.target import FuzzTarget, a_number, a_text, must, mutated

_OFFSETS_SENTENCE_BYTES_MAX = 64 * 1024
_SECRET, _DATE = "s3cret-key", "20250101T000000Z"
_DIGEST = hmac.new(_SECRET.encode(), _DATE.encode(), hashlib.sha1).hexdigest()
_HEADER = f"MQv2-HMAC-SHA1 Credential=root, SignedHeaders=x-mq-date-time, Signature={_DIGEST}"


class OffsetsTarget(FuzzTarget):
    """Input: the text of a file of offsets."""

    name = "offsets"

    def draw(self, dice: random.Random) -> bytes:
        keys = ("t@g", "t@", "@g", "t", "%RETRY%g@g", a_text(dice))
        table = {dice.choice(keys): _offsets(dice) for _ in range(dice.randrange(3))}
        document = {"offsetTable": table, "generations": {"t@g": a_number(dice)}, "more": _anything(dice, 2)}
        text = json.dumps(document if dice.random() < 0.9 else _anything(dice, 4))
        if dice.random() < 0.4:
            text = re.sub(r'"(\d+)":', r"\1:", text)
        if dice.random() < 0.1:
            text = text.replace('{"0": ', '{"0": 1, "0": ', 1)
        if dice.random() < 0.02:
            depth = dice.choice((900, 950, 980, 990, 995, 1_000, 5_000))
            text = '{"offsetTable": {"t@g": {"0": ' + "[" * depth + "]" * depth + "}}}"
        return mutated(text.encode(), dice) if dice.random() < 0.4 else text.encode()

    def judge(self, data: bytes) -> int:
        text = data.decode(errors="replace")
        try:
            table = parse_offsets(text)
        except OffsetFileTorn as torn:
            must(len(str(torn)) <= _OFFSETS_SENTENCE_BYTES_MAX + len(text), "the refusal is longer than the file")
            return 0
        for key, of_key in table.items():
            topic, at, group = key.partition("@")
            must(bool(topic and at and group), f"{key!r} is accepted as topic@group")
            for queue_id, offset in of_key.items():
                must(type(offset) is int and offset >= 0 <= queue_id, f"offset {offset!r} of queue {queue_id!r}")
        must(parse_offsets(dump_offsets(table)) == table, "written and read again, the table is another one")
        found, generations = parse_with_generations(text)
        must(found == table and all(each > 0 for each in generations.values()), "a generation is not positive")
        must(_same_as_plain_json(text, table), "a plain JSON file is read as another table")
        return 2


def _same_as_plain_json(text: str, table: dict[str, dict[int, int]]) -> bool:
    """Whether the table is what Python's JSON reads, for a file in strict JSON whose keys are not repeated."""
    twice: list[str] = []

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice.append("a key")
        return found

    try:
        plain = json.loads(text, object_pairs_hook=once)["offsetTable"]
    except (ValueError, RecursionError):
        return True
    if twice:
        return False
    if any(len(set(map(int, of_key))) != len(of_key) for of_key in plain.values()):
        return False  # a queue is there as 1 and as 01
    return table == {key: {int(queue): at for queue, at in of.items()} for key, of in plain.items()}


class NotificationsTarget(FuzzTarget):
    """Input: the payload of a notification."""

    name = "notifications"

    def draw(self, dice: random.Random) -> bytes:
        if dice.random() < 0.1:
            return dice.choice(("", "due", "pending", "everything", "due ", "[" * 2_000, "null", "[]", "{}")).encode()
        changed = [[dice.choice(("topic", "group", a_text(dice))), "", a_text(dice)] for _ in range(dice.randrange(3))]
        fields: list[Any] = [
            a_text(dice),
            [abs(a_number(dice)) for _ in range(dice.randrange(3))],
            changed,
            [dice.choice(("due", "servers"))][: dice.randrange(2)],
            [[dice.randrange(9), dice.randrange(2**32)] for _ in range(dice.randrange(3))],
        ]
        if dice.random() < 0.5:
            fields[dice.randrange(5)] = _anything(dice, 3)
        del fields[5 if dice.random() < 0.9 else dice.randrange(5) :]
        payload = json.dumps(fields).encode()
        return mutated(payload, dice) if dice.random() < 0.3 else payload

    def judge(self, data: bytes) -> int:
        payload = data.decode(errors="replace")
        heard = notifications.decode(payload)
        if heard is notifications.UNREADABLE:
            must(not _is_notification(payload), f"{payload!r} counts as everything, but a server has sent it")
            return 1
        hash(heard.ready_topics | heard.signals)
        must(all(type(each) is int for each in heard.ready_topics), "a topic's id is no number")
        must(all(type(text) is str for each in heard.invalidations for text in each), "a name is no text")
        must(all(type(each) is str for each in (heard.sender, *heard.signals)), "a signal is no text")
        must(all(type(each) is int for of in heard.ready_lite.items() for each in (of[0], *of[1])), "no hash")
        must(len({len(each) for each in heard.invalidations} - {3}) == 0, "an invalidation has not three parts")
        return 1


def _is_notification(payload: str) -> bool:
    """Whether the payload has the shape that servers send."""
    try:
        found = json.loads(payload)
    except (ValueError, RecursionError):
        return False
    match found:
        case [str(), [*topics], [*changed], [*signals], [*lite]]:
            return (
                all(type(each) is int for each in topics)
                and all(isinstance(each, list) and [type(part) for part in each] == [str] * 3 for each in changed)
                and all(isinstance(each, str) for each in signals)
                and all(isinstance(each, list) and each and all(type(no) is int for no in each) for each in lite)
            )
    return False


class AuthorizationTarget(FuzzTarget):
    """Input: an authorization header and a date, with a line break between them, as Latin-1."""

    name = "authorization"

    def draw(self, dice: random.Random) -> bytes:
        digest = _DIGEST.upper() if dice.random() < 0.5 else _DIGEST
        fields = ["Credential=root", "SignedHeaders=x-mq-date-time", f"Signature={digest}"]
        if dice.random() < 0.3:
            fields[dice.randrange(3)] = dice.choice(
                ("Credential=", "Credential=/root", "Credential", "=", a_text(dice))
            )
        if dice.random() < 0.2:
            dice.shuffle(fields)
        header = f"MQv2-HMAC-SHA1 {', '.join(fields)}"
        date = _DATE if dice.random() < 0.8 else dice.choice(("", "0", a_text(dice), "99991231T235959Z", "٢" * 8))
        data = f"{header}\n{date}".encode("latin-1", "replace")
        return mutated(data, dice) if dice.random() < 0.6 else data

    def judge(self, data: bytes) -> int:
        header, _, date = data.decode("latin-1").partition("\n")
        claimed = rules.read_authorization(header)
        flow._epoch_ms(date)
        if claimed is None:
            must(header != _HEADER, "a legal header is refused")
            return 1
        must(claimed.access_key != "" and claimed.access_key in header, f"{header!r} names {claimed.access_key!r}")
        expected = hmac.new(_SECRET.encode(), date.encode(), hashlib.sha1).hexdigest()
        accepted = rules.is_signed(_SECRET, date, claimed.digest)
        must(accepted is (claimed.digest.lower() == expected), f"{header!r} at {date!r} is accepted: {accepted}")
        must(not rules.is_signed("another-key", date, claimed.digest), f"{header!r} fits another secret")
        return 2


def _offsets(dice: random.Random) -> Any:
    if dice.random() < 0.1:
        return _anything(dice, 2)
    queues = ("0", "1", "01", "-1", "1.5", "", "٣", "9" * 19, "9" * 20, a_text(dice))
    offsets = (0, 5, 10**18, -1, True, 1.5, None, "5", a_number(dice), _anything(dice, 2))
    legal = dice.random() < 0.6
    return {
        dice.choice(queues[:3] if legal else queues): dice.choice(offsets[:3] if legal else offsets)
        for _ in range(dice.randrange(4))
    }


def _anything(dice: random.Random, depth: int) -> Any:
    """Any JSON."""
    match dice.randrange(8 if depth else 6):
        case 0:
            return None
        case 1:
            return dice.random() < 0.5
        case 2:
            return a_number(dice)
        case 3:
            return dice.choice((1.5, -0.0, 1e300, float("inf"), float("nan")))
        case 4 | 5:
            return a_text(dice)
        case 6:
            return [_anything(dice, depth - 1) for _ in range(dice.randrange(5))]
    return {a_text(dice, 3): _anything(dice, depth - 1) for _ in range(dice.randrange(4))}
