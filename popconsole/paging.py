"""Pages of long lists: rows from a number on, and the addresses of the pages before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from popconsole.visits import Visit, address_in

PAGE: Final = 50


@dataclass(frozen=True, slots=True)
class ListPage:
    """A page of a list. count: of the whole list; is_more: the server has more than these.

    before, after: the addresses of the other pages; empty where there is none.
    """

    shown: Sequence[Any]
    first: int
    count: int
    is_more: bool
    before: str
    after: str


def first_of(visit: Visit, name: str = "from") -> int:
    """The number of the first row that is asked for."""
    return visit.asked_number(name)


def page_of(visit: Visit, rows: Sequence[Any], name: str = "from", *, is_more: bool = False) -> ListPage:
    """The page of `rows` that the address asks for. name: of the number in the address, if a page has several lists."""
    first = first_of(visit, name)
    if first >= len(rows):
        first = max(0, (len(rows) - 1) // PAGE * PAGE)  # the list has become shorter
    return ListPage(
        rows[first : first + PAGE],
        first,
        len(rows),
        is_more,
        _address(visit, name, max(0, first - PAGE)) if first else "",
        _address(visit, name, first + PAGE) if first + PAGE < len(rows) else "",
    )


def _address(visit: Visit, name: str, first: int) -> str:
    query = {key: value for key, value in visit.request.query_params.items() if key != name}
    if first:
        query[name] = str(first)
    path = address_in(visit.request).partition("?")[0]
    return path + (f"?{urlencode(query)}" if query else "")
