"""What the filters of receives that are under way take up has a budget."""

from __future__ import annotations

import asyncio

import pytest

from popserver.filters import sql as filters_sql
from popserver.filters import tags
from popserver.filters.memory import Filters
from popserver.model.budget import Budget
from popserver.model.errors import TooManyRequests
from popserver.model.retry import Holder
from tests.support.builders import GROUP, TOPIC
from tests.support.running_broker import RunningBroker


def test_equal_filters_count_once_and_others_find_no_room() -> None:
    one, other = filters_sql.parse("a = 1"), filters_sql.parse("a = 2")
    budget = Budget("filters", one.memory, "bytes", "max_filter_memory")
    filters = Filters(budget)
    with filters.held(one), filters.held(filters_sql.parse("a = 1")), filters.held(tags.parse("*")):
        assert budget.used == one.memory
        with pytest.raises(TooManyRequests, match="--max-filter-memory"), filters.held(other):
            pass
    assert (budget.used, budget.refused) == (0, 1)
    with filters.held(other):
        assert budget.used == other.memory


async def test_a_receive_that_waits_holds_its_filter_and_gives_it_back(broker: RunningBroker) -> None:
    budget = broker.broker.engine.budgets["filters"]
    poll = await broker.poll(wanted="a||b")
    assert budget.used == tags.parse("a||b").memory
    budget.limit = budget.used
    with pytest.raises(TooManyRequests):
        await broker.receive(wanted="c")
    assert await broker.receive() == [], "one without a filter needs no room"
    poll.cancel()
    await asyncio.wait([poll])
    assert (budget.used, budget.refused) == (0, 1)
    assert await broker.receive(wanted="c") == []


async def test_filters_whose_answers_are_remembered_count_with_their_size(broker: RunningBroker) -> None:
    await broker.topic()
    for number in range(20):
        wanted = filters_sql.parse(f"a = '{number}{'x' * 16_000}'")
        found = await broker.broker.receive(
            GROUP,
            TOPIC,
            wanted=wanted,
            batch_size=1,
            invisible_ms=30_000,
            holder=Holder.SIMPLE,
            client_id="c1",
            poll_until_ms=broker.clock.now_ms(),
        )
        assert found == []
    remembered = broker.broker.consuming.polls._filter_prefetch._cache
    assert 1 <= len(remembered) <= remembered.size // wanted.memory
