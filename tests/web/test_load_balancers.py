"""Health checks as load balancers send them by default."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from sqlalchemy import Connection

from popserver.administration import disk
from popserver.app import App
from popserver.model.errors import StoreUnavailable
from tests.support.http_client import answer, connect
from tests.support.waiting import eventually
from tests.web.conftest import started

SIGNED = {"auth": True, "admin_access_key": "root", "admin_secret": "a-long-secret-of-the-admin"}
CHECKS = {
    "HAProxy httpchk": "OPTIONS / HTTP/1.0",
    "HAProxy httpchk with a path": "OPTIONS /readyz HTTP/1.0",
    "HAProxy httpchk GET": "GET /livez HTTP/1.0",
    "no Host, with a body's end": "GET /readyz HTTP/1.0\r\nConnection: close",
    "HEAD": "HEAD /readyz HTTP/1.0",
    "an empty Host": "GET /livez HTTP/1.1\r\nHost:\r\nConnection: close",
    "the address of a container": "GET /livez HTTP/1.1\r\nHost: 10.2.3.4:8082\r\nConnection: close",
    "the name of a service": "GET /readyz HTTP/1.1\r\nHost: popmq:8082\r\nConnection: close",
    "Envoy's name of a cluster": "GET /readyz HTTP/1.1\r\nHost: popmq_cluster\r\nConnection: close",
    "OPTIONS of a server": "OPTIONS * HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close",
}


@pytest.mark.parametrize("options", [{}, {"http": "0.0.0.0:0", **SIGNED}], ids=["this machine", "public"])
async def test_each_is_answered(sqlite_url: str, options: dict[str, object]) -> None:
    async with started(sqlite_url, **options) as app:
        at = app.http_endpoint.replace("0.0.0.0", "127.0.0.1")
        for name, head in CHECKS.items():
            reader, writer = await connect(at)
            writer.write(f"{head}\r\n\r\n".encode())
            assert (await answer(reader, writer)).status in (200, 204), name


async def test_a_check_by_options_fails_when_the_server_is_not_ready(web: App, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_conn: Connection, _file: Path | None) -> None:
        raise StoreUnavailable("orders-db does not answer")

    monkeypatch.setattr(disk, "check", refuse)
    reader, writer = await connect(web.http_endpoint)
    writer.write(b"OPTIONS /readyz HTTP/1.0\r\n\r\n")
    assert (await answer(reader, writer)).status == 503


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy (Debian's package of that name)")
async def test_haproxy_takes_it_for_up(web: App, tmp_path: Path) -> None:
    (tmp_path / "haproxy.cfg").write_text(
        f"""
global
  stats socket {tmp_path}/haproxy.sock mode 600
defaults
  mode http
  timeout connect 5s
  timeout client 30s
  timeout server 30s
  option httpchk
backend consoles
  server one {web.http_endpoint} check inter 100ms
"""
    )
    proxy = await asyncio.create_subprocess_exec("haproxy", "-db", "-f", str(tmp_path / "haproxy.cfg"))
    try:

        async def checked() -> bool:
            if not (tmp_path / "haproxy.sock").exists():
                return False
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / "haproxy.sock"))
            writer.write(b"show stat\n")
            said = (await reader.read()).decode()
            writer.close()
            return any(",UP," in line and ",L7OK," in line for line in said.splitlines() if ",one," in line)

        await eventually(checked, "HAProxy takes it for up", within_s=30)
    finally:
        proxy.terminate()
        await proxy.wait()
