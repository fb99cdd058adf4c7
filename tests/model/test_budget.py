"""Budgets: what is taken, what is refused, and what the refusal says."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popserver.model.budget import Budget, Budgets, Shares


def test_a_refusal_names_the_use_the_limit_and_the_option() -> None:
    budget = Budget("request bytes", 100, "bytes", "max_request_bytes")
    assert budget.take(60)
    assert not budget.take(41)
    assert (budget.used, budget.peak, budget.refused) == (60, 60, 1)
    sentence = budget.refusal("a request of 41 bytes").sentence
    assert "a request of 41 bytes" in sentence
    assert "60 of 100 bytes" in sentence
    assert "--max-request-bytes" in sentence


@given(st.lists(st.integers(0, 40), max_size=50))
def test_no_more_is_used_than_the_limit(amounts: list[int]) -> None:
    budget = Budget("things", 100, "things", "max_things")
    taken: list[int] = []
    for amount in amounts:
        if budget.take(amount):
            taken.append(amount)
        assert budget.used == sum(taken) <= budget.peak <= budget.limit
    assert budget.refused == len(amounts) - len(taken)
    for amount in taken:
        budget.give_back(amount)
    assert budget.used == 0


def test_names_are_unique() -> None:
    budgets = Budgets()
    first = budgets.add("connections", 1, "connections", "max_connections")
    assert budgets["connections"] is first
    assert list(budgets) == [first]
    with pytest.raises(ValueError, match="connections"):
        budgets.add("connections", 2, "connections", "max_connections")


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60))
def test_the_share_of_one_shows_the_holder_that_has_most(steps: list[tuple[str, bool]]) -> None:
    whole, each = Budget("things", 8, "things", "max_things"), Budget("things of one", 4, "things", "max_things_each")
    shares = Shares(whole, each.limit, each)
    held: Counter[str] = Counter()
    refused = peak = 0
    for holder, takes in steps:
        if takes:
            refused += held[holder] == each.limit
            held[holder] += shares.take(holder)
        elif held[holder]:
            shares.give_back(holder)
            held[holder] -= 1
        most = max(held.values(), default=0)
        peak = max(peak, most)
        assert (each.used, each.peak, each.refused) == (most, peak, refused)
