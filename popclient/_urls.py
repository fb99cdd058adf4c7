"""URLs of databases with several hosts, as libpq writes them, in a form that SQLAlchemy can read.

The server has its own reader of such URLs (`popserver/postgres/urls.py`), because it imports nothing of the client.
"""

from __future__ import annotations

import re
from urllib.parse import quote

_HOSTS = re.compile(
    r"^(?P<scheme>postgres[\w+]*://)(?P<user>[^/?#]*@)?(?P<hosts>[^/?#@]*,[^/?#@]*)(?P<rest>[/?#].*)?$", re.DOTALL
)


def readable(url: str) -> str:
    """`postgresql://u@h1:1,h2:2/name` as `postgresql://u@/name?host=h1:1&host=h2:2`; all others unchanged.

    Unless the URL says something else, connections then go to the host that accepts writes: a standby may be behind.
    """
    found = _HOSTS.match(url)
    if found is None:
        return url
    path, _, query = (found["rest"] or "/").partition("?")
    options = [f"host={quote(each, safe=':')}" for each in found["hosts"].split(",")]
    if query:
        options.append(query)
    if "target_session_attrs=" not in query:
        options.append("target_session_attrs=read-write")
    return f"{found['scheme']}{found['user'] or ''}{path or '/'}?{'&'.join(options)}"
