"""Fields of messages that no server takes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

# The SQL function popmq_enqueue, which other languages call, refuses these by itself.
OF_THE_FUNCTION: Final[list[dict[str, Any]]] = [
    {"body": b""},
    {"body": b"x" * (4 * 1024 * 1024 + 1)},
    {"tag": " "},
    {"tag": "a|b"},
    {"tag": "a\x07"},
    {"keys": ["ok", " "]},
    {"keys": ["a\x85"]},
    {"message_group": ""},
    {"message_group": " "},
    {"message_group": "ü" * 32},
    {"message_group": "a\nb"},
    {"message_id": " "},
    {"message_id": "x" * 256},
    {"properties": {"KEYS": "x"}},
    {"properties": {" ": "x"}},
    {"properties": {"a": "\x1f"}},
    {"properties": {"a\x7f": "x"}},
    {"properties": {f"p{number}": "" for number in range(129)}},
    {"properties": {"a": "x" * (16 * 1024)}},
    {"keys": ["ü" * 8 * 1024], "tag": "x"},
    {"idempotency_key": " "},
    {"idempotency_key": "x" * 256},
    {"trace_context": "x" * 1_025},
]
OF_EVERY_BROKER: Final[list[dict[str, Any]]] = [
    *OF_THE_FUNCTION,
    {"topic": ""},
    {"topic": "o bx"},
    {"topic": "x" * 128},
    {"topic": "TBW102"},
    {"topic": "rmq_sys_x"},
    {"keys": ["k"] * 1_025},
    {"message_id": "a\x00"},
    {"trace_context": "a\x00"},
    {"delivery_timestamp": datetime(1969, 12, 31, tzinfo=UTC)},
    {"lite_topic": "a b"},
]
NOT_TYPED: Final[list[dict[str, Any]]] = [
    {"keys": [5]},
    {"tag": 5},
    {"message_group": 5},
    {"message_id": 5},
    {"trace_context": 5},
    {"idempotency_key": 5},
    {"body": 5},
    {"body": None},
    {"body": {}},
]
