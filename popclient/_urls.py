"""URLs of databases with several hosts, as libpq writes them, in a form that SQLAlchemy can read.

The server has its own reader of such URLs (`popserver/postgres/urls.py`), because it imports nothing of the client.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

TARGET: Final = "target_session_attrs"  # libpq's option: which of several hosts

_HOSTS = re.compile(
    r"^(?P<scheme>postgres[\w+]*://)(?P<user>[^/?#]*@)?(?P<hosts>[^/?#@]*,[^/?#@]*)(?P<rest>[/?#].*)?$", re.DOTALL
)


def readable(url: str) -> str:
    """`postgresql://u@h1:1,h2:2/name` as `postgresql://u@/name?host=h1:1&host=h2:2`; all others unchanged."""
    found = _HOSTS.match(url)
    if found is None:
        return url
    path, _, query = (found["rest"] or "/").partition("?")
    options = [f"host={quote(each, safe=':')}" for each in found["hosts"].split(",")]
    if query:
        options.append(query)
    return f"{found['scheme']}{found['user'] or ''}{path or '/'}?{'&'.join(options)}"


def has_several_hosts(url: URL) -> bool:
    hosts = url.query.get("host", "") if url.get_backend_name() == "postgresql" else ""
    return isinstance(hosts, tuple) or "," in hosts


def to_primary(url: URL) -> URL:
    """With several hosts, connections go to the one that accepts writes, unless the URL says something else."""
    if not has_several_hosts(url) or TARGET in url.query:
        return url
    return url.update_query_dict({TARGET: "read-write"})
