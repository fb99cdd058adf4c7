"""The life of one message: a lane for each consumer group, with each hold, each pause and the end.

The scale is not linear, because holds take milliseconds and pauses hours: the span between two steps is as wide as the
logarithm of its length. So the order of all steps is right, and none is too small to see.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final, NamedTuple

from popclient.admin import HistoryEntry, MessageState
from popconsole import words

WIDTH: Final = 1_000.0
EDGE: Final = 16.0
RIGHT: Final = 40.0  # room for a mark behind the last step, and for half a label
LANE: Final = 66.0
STEPS_MAX: Final = 60  # of a lane; the newest
UNIT_S: Final = 0.02
LEAST: Final = 16.0
LABEL: Final = 78.0  # room of a label of time
TEXT: Final = 74.0  # room of "attempt 1" in a bar
FUTURE_MAX: Final = timedelta(hours=1)  # push consumers hold for hours, until they ack
ENDS: Final = frozenset({"COMMIT", "DLQ"})
LOOKS: Final = {"INFLIGHT": "bar", "WAITING_RETRY": "dots", "READY": "line"}


class Segment(NamedTuple):
    """A span in one state. look: bar, dots or line. is_sure: the history knows its beginning. is_future: it may end."""

    colour: str
    look: str
    x: float
    width: float
    text: str
    title: str
    is_sure: bool
    is_future: bool


class Mark(NamedTuple):
    """A moment at which the message was done, or died."""

    colour: str
    shape: str
    x: float
    title: str


@dataclass(slots=True)
class Lane:
    """One group."""

    group: str
    state: str
    y: float
    left_out: int = 0
    segments: list[Segment] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)


class Timeline(NamedTuple):
    """All lanes, and the labels of the axis: x and text."""

    lanes: list[Lane]
    labels: list[tuple[float, str]]
    height: float
    now_x: float | None


class _Span(NamedTuple):
    """A state from one moment to another, before it is drawn."""

    state: str
    begin: datetime
    end: datetime
    attempt: int
    client: str
    is_sure: bool
    is_future: bool = False


class _Life(NamedTuple):
    """A group's spans, and the moments of its ends."""

    state: MessageState
    spans: list[_Span]
    ends: list[tuple[str, datetime, str]]
    left_out: int


def timeline_of(
    states: Sequence[MessageState], history: Sequence[HistoryEntry], stored: datetime, now: datetime
) -> Timeline:
    lives = [_life(each, [step for step in history if step.group == each.group], stored, now) for each in states]
    scale = _Scale(_moments(lives, stored))
    lanes = [_lane(life, index, scale, now) for index, life in enumerate(lives)]
    is_open = any(span.end >= now for life in lives for span in life.spans)
    now_x = scale.x(now) if is_open else None
    return Timeline(lanes, scale.labels(stored, now_x), len(lanes) * LANE + 34, now_x)


def _life(state: MessageState, steps: Sequence[HistoryEntry], stored: datetime, now: datetime) -> _Life:
    left_out = max(0, len(steps) - STEPS_MAX)
    steps = steps[left_out:]
    spans: list[_Span] = []
    ends: list[tuple[str, datetime, str]] = []
    at, current, attempt, client = stored, "READY", 0, ""
    if left_out:
        at, current, attempt = steps[0].at, steps[0].from_state, steps[0].delivery_attempt
    for step in steps:
        is_sure = current == step.from_state
        if current not in ENDS or not is_sure:
            name = step.delivery_attempt if step.from_state == "INFLIGHT" else attempt
            spans.append(_Span(step.from_state, at, max(at, step.at), name, client or step.client_id, is_sure))
        at, current, attempt, client = max(at, step.at), step.to_state, step.delivery_attempt, step.client_id
        if current in ENDS:
            ends.append((current, at, f"{step.event} by {client or 'an operator'}{_because(step.reason)}"))
    if state.state in ENDS:
        if current != state.state:
            spans.append(_Span(state.state, at, now, attempt, "", is_sure=False))
            ends.append((state.state, now, f"{words.state(state.state).text}; the group's history does not say when"))
    else:
        spans.append(
            _Span(state.state, at, max(at, now), state.delivery_attempt, state.client_id, current == state.state)
        )
        if state.visible_at is not None and now < state.visible_at < now + FUTURE_MAX:
            spans.append(
                _Span(state.state, now, state.visible_at, state.delivery_attempt, state.client_id, True, is_future=True)
            )
    return _Life(state, spans, ends, left_out)


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def _moments(lives: Iterable[_Life], stored: datetime) -> list[datetime]:
    found = {stored}
    for life in lives:
        for span in life.spans:
            found |= {span.begin, span.end}
    return sorted(found)


class _Scale:
    """From moments to x."""

    def __init__(self, moments: Sequence[datetime]) -> None:
        weights = [
            max(0.4, math.log1p((after - before).total_seconds() / UNIT_S)) for before, after in pairwise(moments)
        ]
        room = WIDTH - EDGE - RIGHT
        least = min(LEAST, room / max(1, len(weights)))
        spare, total = room - least * len(weights), sum(weights) or 1.0
        self._moments = moments
        self._places = {moments[0]: EDGE}
        x = EDGE
        for moment, weight in zip(moments[1:], weights, strict=True):
            x += least + spare * weight / total
            self._places[moment] = x

    def x(self, moment: datetime) -> float:
        return round(self._places.get(moment, EDGE), 1)

    def labels(self, stored: datetime, now_x: float | None) -> list[tuple[float, str]]:
        """As many as have room, beside that of now: how long after it was stored."""
        found, free_from = [], 0.0
        for moment in self._moments:
            x = self.x(moment)
            if x < free_from or (now_x is not None and abs(x - now_x) < LABEL / 1.5):
                continue
            found.append((x, "stored" if moment == stored else f"+{words.duration(moment - stored)}"))
            free_from = x + LABEL
        return found


def _lane(life: _Life, index: int, scale: _Scale, now: datetime) -> Lane:
    lane = Lane(life.state.group, life.state.state, index * LANE, life.left_out)
    for span in life.spans:
        shown = words.state(span.state)
        x = scale.x(span.begin)
        width = round(scale.x(span.end) - x, 1)
        is_held = span.state == "INFLIGHT" and not span.is_future
        text = f"attempt {span.attempt}" if is_held and width > TEXT else ""
        if not text and is_held and width > LEAST + 4 and span.attempt:
            text = str(span.attempt)
        look = LOOKS.get(span.state, "line")
        title = _title(span, shown.text)
        lane.segments.append(Segment(shown.colour, look, x, width, text, title, span.is_sure, span.is_future))
    for name, moment, title in life.ends:
        shown = words.state(name)
        lane.marks.append(Mark(shown.colour, shown.shape, scale.x(moment), f"{words.exact(moment)}: {title}"))
    return lane


def _title(span: _Span, text: str) -> str:
    long = words.duration(span.end - span.begin)
    if span.is_future:
        return f"{text} until {words.exact(span.end)}, in {long}"
    by = f" by {span.client}, attempt {span.attempt}" if span.state == "INFLIGHT" and span.client else ""
    unsure = "" if span.is_sure else "; the group's history does not say when that began"
    return f"{text}{by}, {long}, from {words.exact(span.begin)}{unsure}"
