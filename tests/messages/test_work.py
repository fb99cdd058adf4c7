"""A look has a budget of work, over all queues."""

from __future__ import annotations

from dataclasses import replace

import pytest

from popserver.administration import filter_trial
from popserver.administration.filter_trial import STEP_MESSAGES
from popserver.dead_letters import selecting
from popserver.dead_letters.rules import Selection
from popserver.filters import Filter, SqlFilter, tags
from popserver.filters import sql as filters_sql
from popserver.messages.ranges import WINDOW_OFFSETS, Work
from popserver.pulling import read
from popserver.pulling.rules import Pulled
from popserver.receiving import receive
from popserver.receiving.batch import Receive
from tests.support.builders import a_message
from tests.support.open_store import OpenStore, a_receive

QUEUES = 8
HEAVY = filters_sql.parse(" OR ".join(f"a CONTAINS 'x{number}'" for number in range(300)))
LARGE = "y" * 8_000
LIGHT = filters_sql.parse("a = 1")


def fill(store: OpenStore, queues: int, each: int, value: str = "0") -> Receive:
    topic = store.topic(queues=queues)
    group = store.group(meets=[topic])
    for number in range(queues):
        store.send(topic, [a_message(tag="A", properties={"a": value}) for _ in range(each)], queue=number)
    return a_receive(group, topic)


def passed_over(store: OpenStore) -> int:
    return int(store.one_value("SELECT SUM(next_offset) FROM progress"))


@pytest.mark.parametrize(
    ("wanted", "most"),
    [
        (tags.parse("B"), 4 * WINDOW_OFFSETS + QUEUES),
        (tags.parse("||".join(f"B{number}" for number in range(1_900))), 3 * 600),
        (LIGHT, 4 * WINDOW_OFFSETS),
    ],
    ids=["a tag", "many tags", "SQL"],
)
def test_a_look_passes_over_so_many_messages_in_all_queues(store: OpenStore, wanted: Filter, most: int) -> None:
    request = replace(fill(store, QUEUES, 600), wanted=wanted)
    looks, before = 0, 0
    while True:
        received = store.one(receive.receive, replace(request, rotation=looks))
        assert received.deliveries == []
        assert 0 <= passed_over(store) - before <= most
        before = passed_over(store)
        looks += 1
        if not received.more:
            break
    assert before == QUEUES * 600
    assert looks > 1


def test_a_filter_that_costs_much_is_asked_about_few(store: OpenStore) -> None:
    request = replace(fill(store, 2, 40, LARGE), wanted=HEAVY)
    found = store.survey(request, enough=100)
    judged = sum(each.to_key - each.from_key for each in found.judged.ranges.values())
    assert 0 < judged < 20
    assert not found.is_all
    store.one(receive.receive, replace(request, judged=found.judged))
    assert passed_over(store) == judged


def test_what_a_message_costs_depends_on_it_and_the_filter_alone() -> None:
    assert HEAVY.cost(None, {"a": LARGE}) > 10 * HEAVY.cost(None, {"a": "y"}) > 10 * LIGHT.cost(None, {"a": "y"})
    assert HEAVY.cost(None, {"b": LARGE}) == HEAVY.cost(None, {})
    assert filters_sql.parse("TAGS = 'A'").cost("A" * 1_600, {}) == filters_sql.parse("TAGS = 'A'").cost(None, {}) + 100


@pytest.mark.parametrize("wanted", [HEAVY, LIGHT], ids=["heavy", "light"])
def test_all_of_them_cost_no_less_than_each(wanted: SqlFilter) -> None:
    values = ["", "1", LARGE, "y" * 100]
    characters = sum(map(len, values))
    assert wanted.cost_of_all(4, characters) >= sum(wanted.cost(None, {"a": value}) for value in values) - 4


def test_work_ends_after_its_units_and_always_does_something() -> None:
    values = [LARGE + "x1", *[LARGE] * 99]
    rows = [(key, None, {"a": value}) for key, value in enumerate(values)]
    characters = 101 * len(LARGE)
    work = Work(3 * HEAVY.cost(None, {"a": LARGE}))
    assert work.judge(HEAVY, rows, characters) == ([0], 3)
    assert work.is_done
    assert work.judge(HEAVY, rows, characters) == ([0], 1)
    assert work.messages(HEAVY) == 1
    work.start_again()
    assert work.messages(HEAVY) == 2, "with room to spare"
    assert work.judge(LIGHT, rows, 0) == ([], 100)


def test_a_pull_by_a_filter_that_costs_much_goes_on_where_it_ended(store: OpenStore) -> None:
    topic = fill(store, 1, 40, LARGE).topic
    pull = read.QueueRead(topic, topic.queues[0], 0, 32, HEAVY)
    offsets = []
    while pull.offset < 40:
        (found,) = read.read_queues(store.conn, [pull])
        assert isinstance(found, Pulled)
        offsets.append(found.next_offset)
        assert found.next_offset > pull.offset
        pull = pull._replace(offset=found.next_offset)
    store.conn.rollback()
    assert len(offsets) > 2


def test_a_trial_of_a_filter_that_costs_much_goes_on_where_it_ended(store: OpenStore) -> None:
    topic = fill(store, 1, 40, LARGE).topic
    end_key: int | None = filter_trial.end_of(topic.queues[0])
    examined = steps = 0
    while end_key is not None:
        step = filter_trial.trial_step(store.conn, HEAVY, topic.queues[0], end_key, 0, STEP_MESSAGES, Work())
        end_key, examined, steps = step.next_key, examined + step.examined, steps + 1
    store.conn.rollback()
    assert examined == 40
    assert steps > 2


def test_dead_letters_are_selected_by_a_filter_that_costs_much_in_more_pages(store: OpenStore) -> None:
    request = fill(store, 1, 20, LARGE)
    for held in store.receive(request.group, request.topic):
        store.forward(request.group, held)
    where = Selection(where=f"NOT ({HEAVY.expression})")
    ids: list[int] = []
    after_id: int | None = 0
    pages = 0
    while after_id is not None:
        page = selecting.page_of_letters(store.conn, request.group, where, after_id, 100)
        ids, after_id, pages = ids + page.ids, page.next_after_id, pages + 1
    store.conn.rollback()
    assert len(ids) == len(set(ids)) == 20
    assert pages > 1
