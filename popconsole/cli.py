"""`popmq console`: the console of any server, in a process of its own."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from typing import Any

from popclient.cli.arguments import UsageError, client_config
from popconsole.settings import DEFAULT_ADDRESS, Settings
from popport.addresses import is_ip, is_loopback, path_of

OK, REFUSED = 0, 1


def add_commands(commands: Any) -> None:
    """Add `popmq console` to the command line."""
    parser = commands.add_parser(
        "console",
        help="show a server in the browser",
        description="Run the console, a web page that shows a server and does what popmq does. It asks the server of"
        " --endpoint; where that has users, visitors sign in with an admin's access key and secret.",
    )
    parser.add_argument(
        "--http", metavar="HOST:PORT", default=DEFAULT_ADDRESS, help=f"where to listen ({DEFAULT_ADDRESS})"
    )
    parser.add_argument(
        "--http-path", metavar="PATH", default="", help="path of the console behind a proxy, such as /popmq"
    )
    parser.add_argument("--read-only", action="store_true", help="show everything, change nothing")
    parser.add_argument(
        "--allow-host",
        metavar="NAME",
        action="append",
        default=[],
        help="a name of this console, such as that of a proxy in front of it; may be repeated",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve the console until a signal."""
    # Loaded here: other commands do without them.
    from popconsole.app import app
    from popconsole.serving import server_of

    host, port = _address(arguments.http)
    try:
        path = path_of(arguments.http_path)
    except ValueError as error:
        raise UsageError(f"--http-path: {error}") from None
    settings = Settings(
        client_config(arguments),
        is_public=not is_loopback(host),
        hosts=frozenset(each.lower() for each in [*arguments.allow_host, *([] if is_ip(host) else [host])]),
        read_only=arguments.read_only,
    )
    if arguments.allow_host:
        print(
            "note: --allow-host lets others reach this console, such as by a proxy. If the server has no users (popmq"
            " serve --auth), they can change everything; then let the proxy ask who comes",
            file=sys.stderr,
        )
    listening = _listen(host, port)
    where = listening.getsockname()
    shown = f"[{where[0]}]" if ":" in where[0] else where[0]
    print(f"console of {settings.server.endpoints}: http://{shown}:{where[1]}{path}/", flush=True)
    server_of(app(settings), path).run(sockets=[listening])
    return OK


def _address(written: str) -> tuple[str, int]:
    host, colon, port = written.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65_535:
        raise UsageError(f"--http is '{written}'; write HOST:PORT, such as {DEFAULT_ADDRESS} (port 0: any free port)")
    return host.strip("[]"), int(port)


def _listen(host: str, port: int) -> socket.socket:
    """A socket at the address. Raises UsageError if it is in use, or not this machine's."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise UsageError(
            f"cannot listen on {host}:{port}: {reason.lower()}; choose another address with --http HOST:PORT"
        ) from None
