"""The law itself, and the page of the documentation that is made from it."""

from __future__ import annotations

import importlib.util
import re
from enum import StrEnum
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popserver.model.group import HistoryLevel, Mode
from popserver.model.retry import Holder
from popserver.model.states import (
    TRANSITIONS,
    CopyKind,
    Event,
    LetterState,
    PendingKind,
    PlanState,
    RedriveState,
    State,
    mermaid,
    sources,
    target,
)

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("event", Event)
def test_an_event_has_one_destination(event: Event) -> None:
    ends = {end for (_, named), end in TRANSITIONS.items() if named is event}
    assert ends == {target(event)}
    assert sources(event) == {source for source, named in TRANSITIONS if named is event}


@pytest.mark.row("L1")
def test_every_state_is_reached_and_left() -> None:
    assert set(TRANSITIONS.values()) == set(State)
    assert {source for source, _ in TRANSITIONS} == set(State)


@pytest.mark.row("L3")
@pytest.mark.parametrize(
    ("source", "event", "end"),
    [
        (State.READY, Event.RECEIVE, State.INFLIGHT),
        (State.INFLIGHT, Event.ACK, State.COMMIT),
        (State.INFLIGHT, Event.RETRY, State.WAITING_RETRY),
        (State.WAITING_RETRY, Event.BACKOFF_ELAPSED, State.READY),
        (State.INFLIGHT, Event.RELEASE, State.READY),
        (State.INFLIGHT, Event.EXHAUST, State.DLQ),
    ],
)
def test_the_edges_of_the_mission(source: State, event: Event, end: State) -> None:
    assert TRANSITIONS[source, event] is end


@pytest.mark.row("L2")
def test_only_a_push_consumers_events_lead_to_waiting_retry() -> None:
    assert {event for (_, event), end in TRANSITIONS.items() if end is State.WAITING_RETRY} == {Event.RETRY}


OPERATORS = {Event.REDRIVE, Event.RESET, Event.SKIP}


@pytest.mark.row("L1")
@pytest.mark.row("L2")
@given(st.lists(st.sampled_from(Event), max_size=60))
def test_any_life_keeps_the_law(events: list[Event]) -> None:
    """Whatever is tried in whatever order: an attempt is begun before it ends, and what has ended stays so."""
    state, last = State.READY, None
    for event in events:
        if (state, event) not in TRANSITIONS:
            continue  # refused
        before, state = state, TRANSITIONS[state, event]
        assert state is target(event)
        if state is State.WAITING_RETRY:
            assert (before, event) == (State.INFLIGHT, Event.RETRY), "a push consumer has failed"
        if state is State.DLQ or event is Event.ACK:
            held = {Event.RECEIVE, Event.CHANGE_INVISIBLE}
            acked = {Event.ACK_IN_TRANSACTION} if event is Event.ACK else set()
            assert last in held | acked, "somebody holds it"
        if before in {State.COMMIT, State.DLQ}:
            assert event in OPERATORS
        last = event


def test_only_an_operator_moves_what_has_ended() -> None:
    ended = {event for source, event in TRANSITIONS if source in {State.COMMIT, State.DLQ}}
    assert ended == {Event.RESET, Event.REDRIVE} <= OPERATORS


def test_the_diagram_shows_every_edge() -> None:
    lines = mermaid().splitlines()
    assert lines[:2] == ["stateDiagram-v2", "    [*] --> READY"]
    assert len(lines) == 2 + len(TRANSITIONS)
    assert "    INFLIGHT --> COMMIT: ACK" in lines


def test_the_page_is_fresh() -> None:
    spec = importlib.util.spec_from_file_location("lifecycle", DOCS / "lifecycle.py")
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    assert (DOCS / "lifecycle.md").read_text() == generator.page(), "run: python docs/lifecycle.py"


@pytest.mark.parametrize("kind", [State, LetterState, RedriveState, PlanState, PendingKind, CopyKind, Mode, Holder])
def test_no_statement_spells_a_name_of_the_law(kind: type[StrEnum]) -> None:
    """They are made from it, so that a name which changes there changes everywhere."""
    spelled = re.compile("|".join(f"'{name}'" for name in kind))
    found = {path.name: spelled.findall(path.read_text()) for path in (DOCS.parent / "popserver").rglob("*.py")}
    assert {name: words for name, words in found.items() if words} == {}


def test_the_history_of_errors_leaves_out_what_goes_well() -> None:
    well = {Event.RECEIVE, Event.ACK, Event.PROVISIONAL_ACK, Event.SETTLE}
    well |= {Event.ACK_IN_TRANSACTION, Event.CHANGE_INVISIBLE, Event.GIVE_BACK, Event.BACKOFF_ELAPSED}
    assert set(HistoryLevel.ERRORS.kept) == set(Event) - well
    assert set(HistoryLevel.ALL.kept) == set(Event)
    assert HistoryLevel.NONE.kept == ()
