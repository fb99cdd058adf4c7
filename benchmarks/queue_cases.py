"""Cases of queue granularity: pulls, their cost with a large backlog, members that join and leave."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.bench import Bench
from benchmarks.case import STOCK_TOPIC, Figures, Rounds, in_turns, window

OVER_TIME_TOPIC = "bench-over-time"


def pull(callers: int, *, in_one_piece: bool) -> Callable[[Bench], Rounds]:
    """Pulls of the messages that the receive cases read: as our own clients do it, or by the standard call."""

    def measure(bench: Bench) -> Rounds:
        def once(name: str, number: int) -> Figures:
            group = f"bench-pull-{callers}-{'batch' if in_one_piece else 'frames'}-{number}"
            options = {"topic": STOCK_TOPIC, "group": group, "callers": callers, "in_one_piece": in_one_piece}
            return bench.load(name).run("pull.walk", **options, **window(bench))

        bench.stock(STOCK_TOPIC)
        return in_turns(bench, bench.names, once)

    return measure


def bulk_pull(callers: int) -> Callable[[Bench], Rounds]:
    """The same messages as Arrow chunks."""

    def measure(bench: Bench) -> Rounds:
        def once(name: str, number: int) -> Figures:
            group = f"bench-bulk-{callers}-{number}"
            return bench.load(name).run("bulk.walk", topic=STOCK_TOPIC, group=group, callers=callers, **window(bench))

        bench.stock(STOCK_TOPIC)
        return in_turns(bench, bench.stores, once)

    return measure


def on_large_backlog(load: str) -> Callable[[Bench], Rounds]:
    """The same calls on a database of 10,000 messages and one of 10,000,000, in turns; figures of the large one.

    One caller, so that other calls do not hide the cost of a call.
    """

    def measure(bench: Bench) -> Rounds:
        def once(name: str, number: int) -> Figures:
            group = f"bench-{load.partition('.')[2]}-{number}"
            small, large = (
                bench.load_over_time(name, OVER_TIME_TOPIC, count).run(
                    load, topic=OVER_TIME_TOPIC, group=group, **window(bench)
                )
                for count in (bench.plan.over_time_small, bench.plan.over_time_large)
            )
            quantiles: Figures = large["call_ms"]
            return large | quantiles | {"of_small": large["rate"] / small["rate"]}

        return in_turns(bench, bench.stores, once)

    return measure


def rebalance(bench: Bench) -> Rounds:
    """How long until every queue has exactly one owner again, after a member has joined or left."""
    plan = bench.plan

    def once(name: str, number: int) -> Figures:
        return bench.load(name).run(
            "members.rebalance",
            topic=f"bench-members-{number}",
            group=f"bench-members-{number}",
            members=plan.group_members,
            queues=plan.member_queues,
            changes=plan.member_changes,
        )

    return in_turns(bench, bench.stores, once)


def churn(bench: Bench) -> Rounds:
    """Lost messages while members join and leave. There is one round, because it has many changes already."""
    plan, found = bench.plan, Rounds()
    for name in bench.stores:
        bench.say(f"{name}, {plan.churns} changes")
        figures: Figures = bench.load(name).run(
            "members.churn",
            topic="bench-churn",
            group="bench-churn",
            members=plan.group_members,
            queues=plan.member_queues,
            changes=plan.churns,
            rate=plan.latency_rate,
            body_bytes=plan.body_bytes,
        )
        found[name] = [figures]
    return found
