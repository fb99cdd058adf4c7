"""The identity of clients: version, host and client ids; and their logger."""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import socket
from importlib import metadata
from typing import Final


def _version() -> str:
    try:
        return metadata.version("popmq")
    except metadata.PackageNotFoundError:
        return "0"


VERSION: Final = _version()
HOSTNAME: Final = socket.gethostname()

log: Final = logging.getLogger("popclient")
_CLIENTS = itertools.count(1)


def new_client_id() -> str:
    """host@pid@counter@random: unique among clients of one process, of forked processes, and of cloned hosts."""
    return f"{HOSTNAME}@{os.getpid()}@{next(_CLIENTS)}@{secrets.token_hex(4)}"
