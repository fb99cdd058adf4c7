"""Which client this is: its version, the host it runs on, and the logger that it writes to."""

from __future__ import annotations

import logging
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
