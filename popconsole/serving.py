"""The port of `popmq console`. It has the limits of a server's HTTP port."""

from __future__ import annotations

import logging
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from popport.below import Below
from popport.bodies import Bodies, room_for
from popport.connections import ConnectionSlots
from popport.serving import http_config
from popport.shares import Count

CONNECTIONS_MAX: Final = 256  # as many as a server's port has by default


def server_of(app: ASGIApp, path: str = "") -> uvicorn.Server:
    """A server for the application; `run` it with listening sockets. path: below which a proxy has it."""
    return uvicorn.Server(
        http_config(
            Below(Bodies(app, Count(room_for(CONNECTIONS_MAX))), path),
            ConnectionSlots(Count(CONNECTIONS_MAX)),
            logging.getLogger("uvicorn.error"),
            log_level="warning",
            lifespan="on",
        )
    )
