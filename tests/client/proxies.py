"""Proxies in front of a server: one that answers every call with an HTTP status, and nginx."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from textwrap import dedent

import h2.config
import h2.connection
import h2.events
import pytest

needs_nginx = pytest.mark.skipif(shutil.which("nginx", path="/usr/sbin:/usr/bin") is None, reason="there is no nginx")


class StatusProxy:
    """Answers each call with that HTTP status and a page, as a proxy does that passes nothing on."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.paths: list[str] = []
        self.endpoint = ""
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        connection.initiate_connection()
        writer.write(connection.data_to_send())
        self.connections += 1
        try:
            while data := await reader.read(65_536):
                for event in connection.receive_data(data):
                    if isinstance(event, h2.events.RequestReceived):
                        self.paths.append(dict(event.headers)[b":path"].decode())
                        headers = [(":status", str(self.status)), ("content-type", "text/html")]
                        connection.send_headers(event.stream_id, headers)
                        connection.send_data(event.stream_id, b"<h1>no</h1>", end_stream=True)
                writer.write(connection.data_to_send())
        except (ConnectionError, asyncio.CancelledError):  # asyncio logs a task of a connection that is cancelled
            pass
        finally:
            self.connections -= 1
            writer.close()


@asynccontextmanager
async def status_proxy(status: int) -> AsyncIterator[StatusProxy]:
    proxy = StatusProxy(status)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    async with server:
        proxy.endpoint = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield proxy


@contextmanager
def nginx(folder: Path, behind: str, *settings: str) -> Iterator[str]:
    """nginx in front of that endpoint; yields its own. settings: lines of its `server`."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = "\n".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    said = "\n".join(settings)
    (folder / "nginx.conf").write_text(
        dedent(f"""
        daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;
        events {{}}
        http {{
            access_log {folder}/access.log; {folders}
            server {{
                listen 127.0.0.1:{port} http2;
                {said}
                location / {{ grpc_pass grpc://{behind}; }}
            }}
        }}
        """)
    )
    program = shutil.which("nginx", path="/usr/sbin:/usr/bin")
    assert program is not None
    process = subprocess.Popen([program, "-p", str(folder), "-c", f"{folder}/nginx.conf"], stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            try:
                socket.create_connection(("127.0.0.1", port), timeout=5).close()
                break
            except ConnectionRefusedError:
                with pytest.raises(subprocess.TimeoutExpired):  # it ends early if it does not take the configuration
                    process.wait(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)
