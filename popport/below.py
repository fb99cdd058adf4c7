"""An HTTP port below a path of a proxy, such as https://mq.example/popmq/."""

from __future__ import annotations

from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send


class Below:
    """An ASGI layer. The application gets each path with the path of the port, which the proxy may have cut off."""

    def __init__(self, app: ASGIApp, path: str) -> None:
        """`path`: without a slash at its end; empty for the root."""
        self._app = app
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._path:
            await self._app(scope, receive, send)
        elif scope["path"] == self._path:
            await RedirectResponse(f"{self._path}/", 308)(scope, receive, send)
        else:
            await self._app(self._whole(scope), receive, send)

    def _whole(self, scope: Scope) -> Scope:
        if scope["path"].startswith(f"{self._path}/"):
            return {**scope, "root_path": self._path}
        raw = scope.get("raw_path")
        return {
            **scope,
            "root_path": self._path,
            "path": self._path + scope["path"],
            "raw_path": raw and self._path.encode() + raw,
        }
