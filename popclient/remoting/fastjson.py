"""JSON as RocketMQ's servers write it: the keys of an object may be numbers or objects themselves.

`{0: "127.0.0.1:10911"}` has the address of each broker by its number, and `{{"queueId": 0}: {"brokerOffset": 7}}` the
offsets of each queue. That is how their library, fastjson, writes maps whose keys are no texts.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

DEPTH_MAX: Final = 64
_BLANKS: Final = re.compile(r"[ \t\r\n]*")
_SCALARS: Final = json.JSONDecoder()


class NotJson(ValueError):
    """The text is no JSON, also not of this kind."""


class MapEntry(NamedTuple):
    """An entry of a map whose keys are objects; a map with such entries is read as a list of them."""

    key: Any
    value: Any


def parse(text: str) -> Any:
    """As `json.loads`. Numbers that are keys become texts, a map with objects as keys becomes a list of rows.

    Raises NotJson, and nothing else.
    """
    try:
        return json.loads(text)
    except ValueError:
        pass  # most answers are ordinary JSON, which is read much faster
    except RecursionError:
        raise NotJson("it is nested too deeply") from None
    reader = _Reader(text)
    value = reader.value(0)
    if reader.next() != "":
        raise NotJson(f"there is more behind its end, at {reader.at}")
    return value


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self.at = 0

    def next(self) -> str:
        """The next character that is no blank; empty at the end."""
        blanks = _BLANKS.match(self._text, self.at)
        self.at = blanks.end() if blanks is not None else self.at
        return self._text[self.at : self.at + 1]

    def value(self, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise NotJson(f"it is nested more than {DEPTH_MAX} times")
        first = self.next()
        if first == "{":
            return self._map(depth + 1)
        if first == "[":
            return self._list(depth + 1)
        try:
            value, self.at = _SCALARS.raw_decode(self._text, self.at)
        except ValueError:
            raise NotJson(f"there is no value at {self.at}") from None
        return value

    def _list(self, depth: int) -> list[Any]:
        found: list[Any] = []
        while self._goes_on("]", bool(found)):
            found.append(self.value(depth))
        return found

    def _map(self, depth: int) -> dict[str, Any] | list[MapEntry]:
        rows: list[MapEntry] = []
        while self._goes_on("}", bool(rows)):
            key = self.value(depth)
            self._take(":")
            rows.append(MapEntry(key, self.value(depth)))
        if any(isinstance(row.key, dict | list) for row in rows):
            return rows
        return {str(row.key): row.value for row in rows}

    def _goes_on(self, end: str, has_some: bool) -> bool:
        """Whether there is one more before `end`; takes the comma, or the end."""
        self.at += not has_some  # the bracket that opens it
        if self.next() == end:
            self.at += 1
            return False
        if has_some:
            self._take(",")
        return True

    def _take(self, wanted: str) -> None:
        if self.next() != wanted:
            raise NotJson(f"{wanted!r} is missing at {self.at}")
        self.at += 1
