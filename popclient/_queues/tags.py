"""The second look at tags: servers compare them by a hash, which two tags may share (requirement M5)."""

from __future__ import annotations

from collections.abc import Iterable

from popclient.message import FilterExpression, MessageView


def wanted(messages: Iterable[MessageView], expression: FilterExpression) -> list[MessageView]:
    """Those of the messages whose tag the expression names; a SQL filter has been applied for good."""
    tags = {tag.strip() for tag in expression.expression.split("||")} - {""}
    if expression.type == "SQL" or not tags or "*" in tags:
        return list(messages)
    return [message for message in messages if message.tag in tags]
