"""The charts of a group or a topic, which the server keeps, over a time range."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from starlette.responses import JSONResponse, Response

from popclient.admin import Chart
from popconsole import rates, words
from popconsole.visits import Refused, Visit

RANGES: Final = {15: "15 min", 60: "1 h", 1_440: "24 h", 10_080: "7 d"}  # minutes
UNKNOWN: Final = Chart(timedelta(seconds=15), (), kept=True)


async def charts_of(visit: Visit, *page: str, tab: str = "", **of: str) -> dict[str, Any]:
    """What the template of charts needs; `page`, `tab`: where they are; `of`: `group=NAME` or `topic=NAME`."""
    minutes = minutes_of(visit)
    found = await visit.attempt(visit.admin.chart(**of, over=timedelta(minutes=minutes)))
    chart: Chart = found.value or UNKNOWN
    last = chart.points[-1] if chart.points else None
    figures = {
        "rates": "no messages" if last is None else f"{words.rate(last.done_rate)} done a second",
        "lag": "no messages" if last is None or last.ready is None else f"{words.count(last.ready)} ready",
        "age": "unknown" if last is None or last.oldest_age is None else words.duration(last.oldest_age),
        "delay": "no delivery" if last is None or last.mean_delay is None else words.duration(last.mean_delay),
    }
    return {
        "chart_page": page,
        "chart_source": (*page, "activity"),
        "chart_tab": tab,
        "ranges": RANGES,
        "minutes": minutes,
        "step": chart.step,
        "is_kept": chart.kept,
        "figures": figures,
        "chart_failure": found.failure,
        "chart_every": rates.chart_lines(chart)["every"],
    }


async def lines(visit: Visit, **of: str) -> Response:
    """The lines of the charts."""
    chart = await visit.admin.chart(**of, over=timedelta(minutes=minutes_of(visit)))
    return JSONResponse(rates.chart_lines(chart))


def minutes_of(visit: Visit) -> int:
    """The time range that is asked for."""
    minutes = visit.asked_number("minutes") or next(iter(RANGES))
    if minutes not in RANGES:
        raise Refused(f"minutes is '{minutes}'; it must be one of {words.listed(map(str, RANGES))}")
    return minutes
