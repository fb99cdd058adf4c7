"""Two pictures of a run, as SVG: the life of one flight that failed, and the states of all flights over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import accumulate
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

from examples.flights.groups import ARRIVALS
from examples.flights.history import STATES, Course
from popclient.admin import MessageFacts
from popconsole import words
from popconsole.pictures.timeline import timeline_of
from popconsole.rendering import environment

WIDTH: Final = 1_000
HEAD: Final = 84  # room of title, sentence and legend
LEFT, RIGHT, HEIGHT, BELOW = 70, 30, 190, 62  # of the areas of one group
LABEL: Final = 90  # room of a label of time
SECONDS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1_800, 3_600)

_COLOURS = {"ready": "#2c6bd1", "inflight": "#e69500", "waiting": "#8450d6", "commit": "#2f9350", "dlq": "#d23445"}
# The classes are those of the console, whose timeline is drawn here, too.
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1b2230} .title{font-size:19px;font-weight:650}"
    " .bold{font-weight:620} .small{font-size:11.5px;fill:#59637a} .dark{font-size:12px;font-weight:600;fill:#1b1200}"
    " .rule{stroke:#e3e6ec} .edge{stroke:#59637a;fill:none}"
    " .cross{stroke:#fff;stroke-width:2.2;fill:none;stroke-linecap:round;stroke-linejoin:round} "
    + " ".join(f".f-{name}{{fill:{colour}}} .s-{name}{{stroke:{colour}}}" for name, colour in _COLOURS.items())
)


class Mark(NamedTuple):
    """A moment to point at."""

    at_ms: int
    text: str


def draw_flight(facts: MessageFacts, now: datetime) -> str:
    """The life of one message in each group: its holds, its attempts, its end."""
    message = facts.message
    stored = message.store_timestamp or message.born_timestamp
    timeline = timeline_of(facts.states, facts.history, stored, now)
    body = environment().get_template("timeline.svg").render(timeline=timeline)
    clients = {step.client_id for step in facts.history if step.event == "RECEIVE" and step.group == ARRIVALS}
    way = f"{message.properties.get('origin')} to {message.properties.get('dest')}"
    sentence = f"{way}; {words.plural(len(clients), 'consumer')} of '{ARRIVALS}' held it. Long spans are drawn shorter."
    occurring = {state for step in facts.history for state in (step.from_state, step.to_state)}
    parts = [f'<g transform="translate(0 {HEAD})">{body}</g>']
    return _svg(
        f"The life of flight {' '.join(message.keys)}",
        sentence,
        HEAD + timeline.height,
        parts,
        [state for state in STATES if state in occurring],
    )


def draw_course(course: Course, marks: Sequence[Mark]) -> str:
    """The states of all messages over the seconds of the run: for each group an area per state, one on the other."""
    steps = max(len(of["READY"]) for of in course.groups.values())
    seconds = steps * course.step_ms / 1_000
    occurring = [state for state in STATES if any(any(of[state]) for of in course.groups.values())]
    parts: list[str] = []
    for index, (group, counts) in enumerate(course.groups.items()):
        top = HEAD + 30 + index * (HEIGHT + BELOW)
        parts += _areas(group, counts, top)
        parts += _axis(seconds, top + HEIGHT)
        for mark in marks:
            x = LEFT + (WIDTH - LEFT - RIGHT) * (mark.at_ms - course.began_ms) / 1_000 / seconds
            parts.append(f'<path class="edge" stroke-dasharray="3 3" d="M{x:.1f} {top - 6}V{top + HEIGHT}"/>')
            parts.append(_text(x, top - 11, mark.text, "small", "middle"))
    height = HEAD + 30 + len(course.groups) * (HEIGHT + BELOW) - 20
    sentence = f"How many flights were in each state during {words.duration(round(seconds))}, from the groups' history."
    return _svg("The states of all flights", sentence, height, parts, occurring)


def _areas(group: str, counts: Mapping[str, Sequence[int]], top: float) -> Iterator[str]:
    """One area per state. The uppermost line is the number of messages stored so far."""
    total = max(map(sum, zip(*counts.values(), strict=True))) or 1
    steps = len(counts["READY"])
    across = (WIDTH - LEFT - RIGHT) / steps
    below = [0] * steps
    yield _text(LEFT, top - 11, group, "bold")
    for number in (0, total):
        y = top + HEIGHT - HEIGHT * number / total
        yield f'<path class="rule" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
        yield _text(LEFT - 8, y + 4, words.count(number), "small", "end")
    for state in STATES:
        above = [under + count for under, count in zip(below, counts[state], strict=True)]
        if any(counts[state]):
            there = _stairs(above, across, top, total)
            back = _stairs(below, across, top, total)[::-1]
            path = "L".join(f"{x:.1f} {y:.1f}" for x, y in there + back)
            title = f"<title>{escape(words.state(state).text)}</title>"
            yield f'<path class="f-{words.state(state).colour}" d="M{path}Z">{title}</path>'
        below = above


def _stairs(numbers: Sequence[int], across: float, top: float, total: int) -> list[tuple[float, float]]:
    """A line with a step for each number."""
    points = []
    for step, number in enumerate(numbers):
        y = top + HEIGHT - HEIGHT * number / total
        points += [(LEFT + step * across, y), (LEFT + (step + 1) * across, y)]
    return points


def _axis(seconds: float, y: float) -> Iterator[str]:
    places = (WIDTH - LEFT - RIGHT) / LABEL
    apart = next((each for each in SECONDS if seconds / each <= places), SECONDS[-1])
    for at in range(0, int(seconds) + 1, apart):
        x = LEFT + (WIDTH - LEFT - RIGHT) * at / seconds
        yield f'<path class="edge" d="M{x:.1f} {y}v5"/>'
        yield _text(x, y + 19, words.duration(at), "small", "middle")


def _svg(title: str, sentence: str, height: float, parts: Sequence[str], states: Sequence[str]) -> str:
    shown = [words.state(state) for state in states]
    widths = [38 + 6.6 * len(each.text) for each in shown]
    legend = "".join(
        f'<rect class="f-{each.colour}" x="{16 + x}" y="62" width="12" height="12" rx="3"/>'
        + _text(34 + x, 72, each.text)
        for each, x in zip(shown, accumulate(widths, initial=0), strict=False)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>"
        f'<rect width="{WIDTH}" height="{height:.0f}" fill="#fff"/>'
        f"{_text(16, 28, title, 'title')}{_text(16, 49, sentence)}{legend}\n" + "\n".join(parts) + "\n</svg>\n"
    )


def _text(x: float, y: float, text: str, look: str = "", anchor: str = "start") -> str:
    return f'<text class="{look}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
