"""The pictures of the demo show what the database has, and any text in them is only text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from examples.flights.groups import ARRIVALS, RADAR
from examples.flights.history import STATES, Course, course_of, flight_that_failed
from examples.flights.pictures import BELOW, HEAD, HEIGHT, Mark, draw_course, draw_flight
from examples.flights.watching import looking_at
from popclient.admin import Admin, MessageFacts
from popserver import embedded

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return [each.text or "" for each in ET.fromstring(svg).iter(f"{SVG}text")]


def areas(svg: str, colour: str) -> Iterator[list[tuple[float, float]]]:
    """The corners of each area of this colour."""
    for path in ET.fromstring(svg).iter(f"{SVG}path"):
        if path.get("class") == f"f-{colour}":
            numbers = [float(each) for each in re.findall(r"[\d.]+", path.get("d", ""))]
            yield list(zip(numbers[::2], numbers[1::2], strict=True))


@pytest.fixture
def course(finished: Path) -> Course:
    with looking_at(finished) as database:
        return course_of(database)


@pytest.fixture
def facts(finished: Path, tmp_path: Path) -> MessageFacts:
    """What a server says about the flight that died."""
    with looking_at(finished) as database:
        message_id = flight_that_failed(database)
    with embedded(finished, manual_clock=True) as broker, Admin(broker.endpoint) as admin:
        return admin.get_message(message_id)


def test_the_course_ends_with_what_the_groups_have(course: Course) -> None:
    assert list(course.groups) == [ARRIVALS, RADAR]
    for group, ended in ((ARRIVALS, (3, 1, 0, 0, 0)), (RADAR, (4, 0, 0, 0, 0))):
        counts = course.groups[group]
        assert tuple(counts[state][-1] for state in STATES) == ended
        assert {sum(step) for step in zip(*counts.values(), strict=True)} == {4}, "each flight is in one state"
    held = course.groups[ARRIVALS]["INFLIGHT"]
    assert (held[0], held[-1]) == (1, 0), "the hold of the flight that died takes its time"


def test_areas_are_to_scale(course: Course) -> None:
    svg = draw_course(course, [Mark(course.began_ms, "a <mark>")])
    bottom = HEAD + 30 + HEIGHT
    (dead,) = areas(svg, "dlq")
    assert {y for _, y in dead} == {bottom - HEIGHT, bottom - HEIGHT * 3 / 4}, "one on three that are done"
    done = list(areas(svg, "commit"))
    assert [max(y for _, y in each) for each in done] == [bottom, bottom + HEIGHT + BELOW]
    assert list(areas(svg, "waiting")) == []
    shown = texts(svg)
    assert {ARRIVALS, RADAR, "done", "dead letter", "in flight", "0 s", "a <mark>"} <= set(shown)
    assert "waiting for a retry" not in shown, "the legend has what occurs"


def test_the_life_of_a_flight(facts: MessageFacts) -> None:
    assert [(each.group, each.event) for each in facts.history if each.group == ARRIVALS] == [
        (ARRIVALS, "RECEIVE"),
        (ARRIVALS, "EXHAUST"),
    ]
    now = max(each.at for each in facts.history) + timedelta(seconds=1)
    svg = draw_flight(facts, now)
    shown = texts(svg)
    assert shown[:2] == [
        "The life of flight UA-0",
        "x to x; 1 consumer of 'arrivals' held it. Long spans are drawn shorter.",
    ]
    assert {ARRIVALS, RADAR, "attempt 1", "stored", "+5 s"} <= set(shown)
    assert "f-dlq" in {each.get("class") for each in ET.fromstring(svg).iter(f"{SVG}circle")}


def test_strange_names_are_text(facts: MessageFacts) -> None:
    hostile = "<script>&\"'"
    states = tuple(replace(each, group=hostile) for each in facts.states)
    svg = draw_flight(replace(facts, states=states), facts.history[-1].at)
    assert hostile in texts(svg)
    assert "<script" not in svg
