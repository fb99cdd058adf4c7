"""URLs of a Postgres with several hosts, in two forms.

`postgresql://user@h1:5432,h2:5432/name` is the form of libpq, `postgresql://user@/name?host=h1:5432&host=h2:5432` that
of SQLAlchemy, which cannot read the first. Inside the server the hosts are in the query, as libpq's options `host` and
`port`: lists with commas.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from sqlalchemy.engine import URL

from popserver.model.errors import StoreUnavailable

TARGET = "target_session_attrs"
WRITABLE = ("read-write", "primary")  # values of TARGET with which a server can write
SECRET_OPTIONS = ("password", "sslpassword")  # Postgres also accepts these in a URL's query

# Options that libpq reads as numbers.
_NUMBERS = {
    "connect_timeout",
    "tcp_user_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
}
_HOSTS = re.compile(
    r"^(?P<scheme>[\w+]+://)(?P<user>[^/?#]*@)?(?P<hosts>[^/?#@]*,[^/?#@]*)(?P<rest>[/?#].*)?$", re.DOTALL
)
_HOST = re.compile(r"^(?:\[(?P<ip6>[^\]]*)\]|(?P<host>[^:]*))(?::(?P<port>[^:]*))?$")


class Host(NamedTuple):
    """One host of a URL: a name, an address or the folder of a socket. Empty parts are libpq's defaults."""

    host: str
    port: str
    address: str = ""  # libpq's `hostaddr`, which saves the lookup of the name

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host or self.address
        return f"{host}:{self.port}" if self.port else host


def readable(url: str) -> str:
    """The URL in a form that SQLAlchemy can read: several hosts before the path move into the query."""
    found = _HOSTS.match(url)
    if found is None or not url.startswith("postgres"):
        return url
    path, _, query = (found["rest"] or "/").partition("?")
    hosts = "&".join(f"host={quote(each, safe='[]:')}" for each in found["hosts"].split(","))
    return f"{found['scheme']}{found['user'] or ''}{path or '/'}?{hosts}{'&' if query else ''}{query}"


def with_lists(url: URL) -> URL:
    """The URL with its hosts as libpq's lists, if it has several. Raises `StoreUnavailable` for wrong ports."""
    given = url.query.get("host")
    if not isinstance(given, tuple):
        hosts_of(url.query)
        return url
    found = [_split(each) for each in given]
    wrong = next((each.port for each in found if each.port and not _is_port(each.port)), None)
    if wrong is not None:
        raise StoreUnavailable(f"database URL '{shown(url)}' has the port '{wrong}'; a port is a number up to 65535")
    lists = {"host": ",".join(each.host for each in found)}
    if any(each.port for each in found):
        lists["port"] = ",".join(each.port for each in found)
    return url.update_query_dict(lists)


def shown(url: URL) -> str:
    """The URL as libpq writes it, without its password, for logs and errors."""
    open_part = url.difference_update_query(SECRET_OPTIONS)
    hosts = open_part.query.get("host")
    if url.get_backend_name() != "postgresql" or not hosts:
        return open_part.render_as_string(hide_password=True)
    if isinstance(hosts, str):
        hosts = tuple(str(each) for each in hosts_of({**open_part.query}))
    if any(each.startswith("/") for each in hosts):  # a folder cannot be written before the path
        return unquote(open_part.render_as_string(hide_password=True))
    bare = open_part.difference_update_query(["host", "port"]).set(host="HOSTS")
    return bare.render_as_string(hide_password=True).replace("HOSTS", ",".join(hosts), 1)


def hosts_of(arguments: Mapping[str, Any]) -> Sequence[Host]:
    """The hosts in libpq's options. Raises `StoreUnavailable` if there is not one port, or one for each host."""
    lists = {name: str(arguments.get(name) or "").split(",") for name in ("host", "port", "hostaddr")}
    count = max(len(lists["host"]), len(lists["hostaddr"]))
    for name, listed in lists.items():
        if len(listed) not in {1, count}:
            raise StoreUnavailable(
                f"the database URL has {count} hosts and {len(listed)} values of '{name}'; give one for each host"
            )
    each = {name: listed * count if len(listed) == 1 else listed for name, listed in lists.items()}
    return [Host(*parts) for parts in zip(each["host"], each["port"], each["hostaddr"], strict=True)]


def check_target(url: URL) -> None:
    """Raise `StoreUnavailable` for a URL whose connections may go to a standby, which cannot be written."""
    target = url.query.get(TARGET)
    if target and target not in WRITABLE:
        raise StoreUnavailable(
            f"database URL '{shown(url)}' asks for {TARGET}={target}, but PopMQ writes to its database; write"
            f" {TARGET}={WRITABLE[0]}, or leave it out"
        )


def check_options(url: URL) -> None:
    """Raise `StoreUnavailable` for an option in the URL's query that libpq does not know or cannot read."""
    from psycopg.pq import Conninfo

    known = {each.keyword.decode() for each in Conninfo.get_defaults()}
    for name, value in url.query.items():
        if name not in known:
            near = get_close_matches(name, known, 1)
            raise StoreUnavailable(
                f"database URL '{shown(url)}' has the option '{name}', which Postgres' libpq does not know;"
                f" {f'write {near[0]}' if near else 'leave it out'}; PopMQ keeps its own few connections"
            )
        if name in _NUMBERS and not re.fullmatch(r"-?\d+", str(value)):
            raise StoreUnavailable(f"database URL '{shown(url)}' has {name}={value}; write a whole number")


def _split(written: str) -> Host:
    if written.startswith("/"):  # a folder, with the port of its socket
        folder, _, port = written.partition(":")
        return Host(folder, port)
    found = _HOST.match(written)
    if found is None:
        return Host(written, "")
    return Host(found["ip6"] or found["host"] or "", found["port"] or "")


def _is_port(port: str) -> bool:
    return port.isascii() and port.isdigit() and 0 < int(port) <= 65_535
