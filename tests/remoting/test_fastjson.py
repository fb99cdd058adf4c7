"""JSON whose keys may be numbers or objects, as RocketMQ writes it."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popclient.remoting.fastjson import DEPTH_MAX, MapEntry, NotJson, _Reader, parse

pytestmark = pytest.mark.row("O9")

DOCUMENTS: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(DOCUMENTS, st.sampled_from([None, 2]))
def test_ordinary_json_is_read_as_always(document: Any, indent: int | None) -> None:
    written = json.dumps(document, indent=indent)
    assert parse(written) == document
    assert _Reader(written).value(0) == document


@given(st.text())
def test_anything_else_raises_one_error(written: str) -> None:
    with contextlib.suppress(NotJson):
        parse(written)


@given(st.text('{}[]:,"01 a', max_size=30))
def test_what_resembles_json_raises_that_error_too(written: str) -> None:
    with contextlib.suppress(NotJson):
        parse(written)


def test_numbers_as_keys() -> None:
    assert parse('{"brokerAddrs":{0:"a:1",1:"b:2"}}') == {"brokerAddrs": {"0": "a:1", "1": "b:2"}}


def test_objects_as_keys() -> None:
    written = '{"offsetTable":{{"queueId":0,"topic":"a"}:{"end":7}, {"queueId":1}:{"end":3}},"tps":0.5}'
    rows = [MapEntry({"queueId": 0, "topic": "a"}, {"end": 7}), MapEntry({"queueId": 1}, {"end": 3})]
    assert parse(written) == {"offsetTable": rows, "tps": 0.5}


@pytest.mark.parametrize(
    "written",
    ["", "{", "{1", "{1:", "{1:2", "{1:2,", "{1:2}}", "{,}", "{1:2,}", "[1,]", "[1 2]", "{{}:}", '{0:"a"} x', "{0:a}"],
)
def test_what_is_none(written: str) -> None:
    with pytest.raises(NotJson):
        parse(written)


@pytest.mark.parametrize("opened", ["[", "{0:", "{{"])
def test_no_depth_overflows_the_stack(opened: str) -> None:
    with pytest.raises(NotJson, match="nested"):
        parse(opened * 200_000)
    assert DEPTH_MAX == 64
