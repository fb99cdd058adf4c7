"""Pages from templates. Every value is escaped: names and bodies come from strangers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from popclient._version import VERSION
from popconsole import copies, words

FOLDER: Final = Path(__file__).parent
STATIC: Final = FOLDER / "static"


@cache
def environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in (
        "count",
        "rate",
        "duration",
        "written",
        "exact",
        "iso",
        "epoch_ms",
        "size",
        "short",
        "plural",
        "share",
    ):
        made.filters[name] = getattr(words, name)
    made.filters["state"] = words.state
    made.globals.update(STATES=list(words.STATES.values()), relative=words.relative, measure=words.measure)
    made.globals.update(copies=copies, listed=words.listed, meanings=words.MEANINGS)
    return made


def render(template: str, root: str, context: Mapping[str, Any]) -> str:
    """root: the path under which the console is mounted, without a slash at its end."""

    def path(*parts: str, **query: object) -> str:
        """A link inside the console: `path("groups", name, tab="holds")`; what is None or empty is left out."""
        given = {key: value for key, value in query.items() if value not in (None, "")}
        return f"{root}/{place_of(*map(str, parts))}" + (f"?{urlencode(given)}" if given else "")

    def asset(name: str) -> str:
        return f"{root}/static/{name}?v={_digest(name)}"

    defaults = {"path": path, "asset": asset, "build": build(), "now": datetime.now(UTC)}
    return environment().get_template(template).render({**defaults, **context})


def place_of(*parts: str) -> str:
    """The path to a page below the console's root.

    Browsers take `.` and `..` as ways to other folders, also when they are written `%2E`. So such a name gets a `~`.
    A name that looks like that gets one more.
    """
    return "/".join(quote(f"~{part}" if _is_dots(part) else part, safe="") for part in parts)


def name_in(part: str) -> str:
    """The name that `place_of` has written as this part, which the HTTP library has decoded."""
    return part[1:] if part.startswith("~") and _is_dots(part) else part


def _is_dots(name: str) -> bool:
    return name.lstrip("~") in (".", "..")


@cache
def build() -> str:
    """Pages of another build do not fit to the parts that this one answers."""
    files = sorted(each for each in FOLDER.rglob("*") if each.is_file() and each.suffix != ".pyc")
    return hashlib.sha256(b"".join([VERSION.encode(), *(each.read_bytes() for each in files)])).hexdigest()[:12]


@cache
def _digest(name: str) -> str:
    """Browsers keep a file until its content changes."""
    return hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]
