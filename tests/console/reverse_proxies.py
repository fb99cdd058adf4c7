"""nginx and HAProxy in front of an HTTP port, with the configurations of docs/behind-a-proxy.md."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.support.waiting import soon

PAGE: Final = Path(__file__).parents[2] / "docs" / "behind-a-proxy.md"
NAME: Final = "tools.example"  # of the page


def _block(language: str, begin: str) -> str:
    """The configuration of the page that begins so."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (found,) = [each for each in blocks if each.startswith(begin)]
    return str(found)


def nginx_leaves(port: int, server: str) -> str:
    """As on the page, without TLS."""
    block = _block("nginx", "server {").replace("listen 443 ssl;", f"listen 127.0.0.1:{port};")
    assert "127.0.0.1:8082" in block
    user = "user root;" if os.geteuid() == 0 else ""
    temporary = "".join(f"{name}_temp_path tmp;" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    return (
        f"{user} daemon off; master_process off; pid nginx.pid; error_log stderr; events {{}}\n"
        f"http {{ access_log off; {temporary} {block.replace('127.0.0.1:8082', server)} }}\n"
    )


def nginx_cuts(port: int, server: str) -> str:
    return nginx_leaves(port, server).replace(f"proxy_pass http://{server};", f"proxy_pass http://{server}/;")


def haproxy_leaves(port: int, server: str) -> str:
    block = _block("text", "frontend https").replace(":443 ssl crt /etc/haproxy/tools.pem", f"127.0.0.1:{port}")
    assert "127.0.0.1:8082" in block
    times = "defaults\n    timeout connect 5s\n    timeout client 60s\n    timeout server 60s\n"
    return times + block.replace("127.0.0.1:8082", server)


def haproxy_cuts(port: int, server: str) -> str:
    (rule,) = re.findall(r"`(http-request replace-path .*?)`", PAGE.read_text())
    return haproxy_leaves(port, server) + f"    {rule}\n"


Configure = Callable[[int, str], str]
PROXIES: Final[dict[str, tuple[str, Configure]]] = {
    "nginx": ("nginx", nginx_leaves),
    "nginx-cuts": ("nginx", nginx_cuts),
    "haproxy": ("haproxy", haproxy_leaves),
    "haproxy-cuts": ("haproxy", haproxy_cuts),
}


def program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")


@contextmanager
def proxy(kind: str, server: str, folder: Path) -> Iterator[int]:
    """The port of a proxy in front of the server."""
    name, configure = PROXIES[kind]
    path = program(name)
    assert path is not None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    file = folder / f"{kind}.conf"
    file.write_text(configure(port, server))
    arguments = ["-p", str(folder), "-c", str(file)] if name == "nginx" else ["-db", "-f", str(file)]
    process = subprocess.Popen([path, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        soon(lambda: _listens(port))
        yield port
    finally:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0
