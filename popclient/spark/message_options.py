"""Options that all modes share: which messages are wanted, and as which columns."""

from __future__ import annotations

from popclient.message import FilterExpression
from popclient.spark.given import Given
from popclient.spark.message_columns import LAYOUTS, Column, columns_of


def filter_of(given: Given) -> FilterExpression:
    """All messages where no option says otherwise; raises `ValueError` naming the option."""
    kind = given.choice("filterType", "TAG", ("TAG", "SQL92", "SQL"))
    if kind != "TAG" and "filterExpression" not in given:
        raise given.refuse("filterType", "it goes with a filterExpression")
    return FilterExpression(given.text("filterExpression") or "*", "TAG" if kind == "TAG" else "SQL")


def columns_from(given: Given) -> tuple[Column, ...]:
    """All columns of the layout that is asked for; raises `ValueError` naming the option."""
    layout = given.choice("columns", LAYOUTS[0], LAYOUTS)
    include_headers = given.flag("includeHeaders", default=False)
    if include_headers and layout != "kafka":
        raise given.refuse("includeHeaders", "it goes with columns=kafka; otherwise the column properties has them")
    return columns_of(layout, include_headers=include_headers)
