"""The console: pages for the people who run a PopMQ server. It asks the server by the same calls as `popmq`.

`popmq console` runs it beside any server; `popconsole.app(…)` is a Starlette application to mount elsewhere.
"""

from __future__ import annotations

from popconsole.app import app
from popconsole.settings import Settings

__all__ = ["Settings", "app"]
