"""Message ids as people type them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from popclient.errors import NotFound

Found = TypeVar("Found")

# The layout that clients give their ids, in capitals; an id may be any other text as well.
_ID_V1 = re.compile(r"01[0-9A-F]{32}")


def in_any_case(look: Callable[[str], Found], written: str) -> Found:
    """What `look` finds under the id as it was typed, else under the same digits in capitals; raises `NotFound`."""
    capitals = written.upper()
    if capitals == written or not _ID_V1.fullmatch(capitals):
        return look(written)
    try:
        return look(written)
    except NotFound:
        return look(capitals)
