"""Where a server is reached: HOST:PORT, an IPv6 host in brackets."""

from __future__ import annotations

import re

_ADDRESS = re.compile(r"(?:\[([0-9a-fA-F:.%]+)\]|([^\s:\[\]]+)):(\d{1,5})")
PORT_MAX = 65_535


def split_address(address: str) -> tuple[str, int]:
    """Host and port; raises `ValueError` where the text is no address a client could dial."""
    found = _ADDRESS.fullmatch(address)
    if found is None or not 0 < int(found[3]) <= PORT_MAX:
        raise ValueError(f"'{address}' is no HOST:PORT with a port from 1 to {PORT_MAX}; write mq-1.example:8081")
    return found[1] or found[2], int(found[3])
