"""A failing run made smaller: faults and steps are left out while it still breaks the same invariant."""

from __future__ import annotations

from proof.simulate.run import Plan, Result, simulate
from proof.simulate.stores import Store

TRIES = 120  # runs that a shrinking may take


def shrunk(plan: Plan, result: Result, store: Store | None = None, tries: int = TRIES) -> Plan:
    """A plan with fewer faults and steps that breaks the same invariant as `result`."""
    broken = result.violations[0].invariant
    for field, numbers in (("faultless", list(result.faulty)), ("without", list(range(plan.steps)))):
        size = max(1, len(numbers))
        while size >= 1 and tries > 0:
            for start in range(0, len(numbers), size):
                left_out = getattr(plan, field) | set(numbers[start : start + size])
                smaller = plan._replace(**{field: left_out})
                if left_out == getattr(plan, field) or tries <= 0:
                    continue
                tries -= 1
                if _breaks(smaller, broken, store):
                    plan = smaller
            size //= 2
    return plan


def _breaks(plan: Plan, invariant: str, store: Store | None) -> bool:
    return any(each.invariant == invariant for each in simulate(plan, store).violations)
