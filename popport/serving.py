"""How uvicorn serves an application on a port of ours."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, cast

from starlette.types import ASGIApp
from uvicorn import Config

from popport.connections import ConnectionSlots, HttpConnection

HEAD_BYTES_MAX = 16 * 1024  # of a request line with its headers
QUIET_S = 75  # of an open connection between two requests; longer than Prometheus waits between two scrapes


def http_config(app: ASGIApp, slots: ConnectionSlots, logger: logging.Logger, **more: Any) -> Config:
    """uvicorn's settings. `places`: for the connections. `logger`: gets what uvicorn says. `more`: of uvicorn."""
    return Config(
        app,
        http=cast("type[HttpConnection]", partial(HttpConnection, slots, logger)),
        ws="none",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # anybody can write X-Forwarded-For, and so be as many addresses as they like
        timeout_keep_alive=QUIET_S,
        h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        **more,
    )
