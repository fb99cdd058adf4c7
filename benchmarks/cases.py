"""The cases by name. A case measures every variant in turn, round by round, and returns its figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.abuse_cases import ABUSE_CASES
from benchmarks.admin_calls import admin_calls
from benchmarks.bench import DOORS, ENGINES, Bench, Way
from benchmarks.case import CALLERS, CONSUMERS, STOCK_TOPIC, Case, Figures, Rounds, in_turns, window
from benchmarks.filling import TAGS
from benchmarks.installed_cases import INSTALLED_CASES
from benchmarks.lite import CLIENTS, lite
from benchmarks.mirror_cases import MIRROR_CASES
from benchmarks.noop_server import ECHO_TOPIC, EMPTY_TOPIC
from benchmarks.peer_cases import PEER_CASES
from benchmarks.queue_cases import bulk_pull, churn, on_large_backlog, pull, rebalance
from benchmarks.server_cases import door, start
from benchmarks.sizes.cases import SIZES_CASES
from benchmarks.spark_cases import dead_letters, flights_to_parquet, micro_batch
from benchmarks.together_cases import TOGETHER_CASES

DELAY_TOPIC = "bench-delay"
HOLD_TOPIC = "bench-hold"
HOLD_S = 10  # the shortest hold that a server allows by default
FILTER_TOPIC = "bench-stock-filter"


def _send(load: str, insert: int | None, callers: int, **options: Any) -> Callable[[Bench], Rounds]:
    """`insert`: rows per transaction of the raw insert that is measured in the same rounds, right after the sends."""

    def measure(bench: Bench) -> Rounds:
        def once(name: str, _: int) -> Figures:
            figures = bench.load(name).run(
                load, topic="bench-send", callers=callers, **options, **window(bench, body=True)
            )
            if insert is None or name == "noop":
                return figures
            return figures | {"insert_rate": bench.insert_rate(name, insert)}

        return in_turns(bench, bench.names, once)

    return measure


def _door_sends(ways: Mapping[str, Way], callers: int, per_request: int) -> Callable[[Bench], Rounds]:
    return door(ways, "raw.send", topic="bench-door", callers=callers, per_request=per_request)


def _receive(load: str, callers: int, *, ack_each: bool) -> Callable[[Bench], Rounds]:
    def measure(bench: Bench) -> Rounds:
        def once(name: str, number: int) -> Figures:
            group = f"bench-{load.partition('.')[0]}-{'each' if ack_each else 'batch'}-{callers}-{number}"
            return bench.load(name).run(load, group=group, **options)

        options = {
            "topic": STOCK_TOPIC,
            "stock": bench.plan.stock,
            "groups": 1 + int(bench.plan.seconds * 40_000 / bench.plan.stock),
            "ack_each": ack_each,
            "callers": callers,
        } | window(bench)
        bench.stock(STOCK_TOPIC)
        return in_turns(bench, bench.names, once)

    return measure


def _consume(consumers: int, *, pushes: bool) -> Callable[[Bench], Rounds]:
    """popclient's consumers, and the same where a receive is answered with a frame per message, in turns."""

    def measure(bench: Bench) -> Rounds:
        def once(name: str, number: int) -> Figures:
            options = {"topic": STOCK_TOPIC, "stock": bench.plan.stock, "consumers": consumers, "pushes": pushes}
            group = f"bench-consume-{'push' if pushes else 'simple'}-{consumers}-{number}"
            load = bench.load(name)
            frames = load.run("client.consume", group=f"{group}-frames", by_frames=True, **options)
            figures: Figures = load.run("client.consume", group=group, by_frames=False, **options)
            return figures | {"of_frames": figures["rate"] / frames["rate"]}

        bench.stock(STOCK_TOPIC)
        return in_turns(bench, bench.names, once)

    return measure


def _latency(bench: Bench) -> Rounds:
    plan = bench.plan
    options = {"rate": plan.latency_rate, "callers": 4, "body_bytes": plan.body_bytes}

    def once(name: str, number: int) -> Figures:
        figures: Figures = bench.load(name).run(
            "raw.latency",
            # A new topic, because a new group would find the messages of the round before.
            topic=f"{ECHO_TOPIC}-{number}",
            group=f"bench-latency-{number}",
            seconds=plan.latency_seconds,
            **options,
        )
        quantiles: Figures = figures["end_to_end_ms"]
        return figures | quantiles

    return in_turns(bench, bench.names, once)


def _idle(bench: Bench) -> Rounds:
    """All variants at the same time: idle servers do not disturb each other."""
    plan = bench.plan
    for name in bench.names:
        bench.load(name).begin(
            "raw.idle",
            topic=EMPTY_TOPIC,
            polls=plan.idle_polls,
            poll_seconds=plan.idle_poll_seconds,
            seconds=plan.idle_seconds,
        )
    bench.say(f"{plan.idle_polls} polls for {plan.idle_seconds:.0f} s")
    figures = {name: bench.load(name).figures() for name in bench.names}
    return {name: [each | {"percent": each["cpu"] * 100}] for name, each in figures.items()}


def _backlog(bench: Bench) -> Rounds:
    """The same load on a store of 10,000 messages and one of 1,000,000, in turns; figures of the large one.

    The large database is read further in each round, so that no page is read twice.
    """
    plan, found = bench.plan, Rounds()
    for name in bench.stores:
        sizes = {"small": plan.backlog_small, "large": plan.backlog_large}
        with bench.backlog(name, sizes, STOCK_TOPIC) as loads:
            found[name] = []
            for number in range(plan.rounds):
                rates = {}
                for size, stock in sizes.items():
                    bench.say(f"round {number + 1} of {plan.rounds}: {name}, {stock:,} stored")
                    rates[size] = loads[size].run(
                        "raw.receive",
                        topic=STOCK_TOPIC,
                        group=f"bench-backlog-{number if size == 'small' else 'on'}",
                        stock=stock,
                        groups=8 if size == "small" else 1,
                        ack_each=False,
                        callers=CONSUMERS,
                        **window(bench),
                    )
                found[name].append(rates["large"] | {"of_small": rates["large"]["rate"] / rates["small"]["rate"]})
    return found


def _filter(bench: Bench) -> Rounds:
    """Receives with a SQL filter that accepts one message of ten, and receives by the tag that these have."""
    plan, found = bench.plan, Rounds()
    tenth = plan.stock // len(TAGS)
    wishes = {"tag": ("TAG", "UA"), "sql": ("SQL", "carrier = 'UA' AND distance >= 1000")}
    for name in bench.stores:
        with bench.for_filters(name, FILTER_TOPIC) as load:
            found[name] = []
            for number in range(plan.rounds):
                rates = {}
                for kind, wanted in wishes.items():
                    bench.say(f"round {number + 1} of {plan.rounds}: {name} by {kind}")
                    rates[kind] = load.run(
                        "raw.receive",
                        topic=FILTER_TOPIC,
                        group=f"bench-filter-{kind}-{number}",
                        stock=tenth,
                        groups=1 + int(plan.seconds * 10_000 / tenth),
                        ack_each=False,
                        callers=CONSUMERS,
                        wanted=wanted,
                        **window(bench),
                    )
                found[name].append(rates["sql"] | {"of_tag": rates["sql"]["rate"] / rates["tag"]["rate"]})
    return found


def _fifo(groups: int, beside: int, ratio: str) -> Callable[[Bench], Rounds]:
    """Receives from a topic with `groups` message groups, and from one with `beside` (0: none), in turns."""

    def measure(bench: Bench) -> Rounds:
        plan, found = bench.plan, Rounds()
        topics = {f"{STOCK_TOPIC}-{each}-groups": each for each in (groups, beside)}
        for name in bench.stores:
            with bench.in_order(name, topics) as load:
                found[name] = []
                for number in range(plan.rounds):
                    rates = {}
                    for topic, count in topics.items():
                        bench.say(f"round {number + 1} of {plan.rounds}: {name}, {count:,} message groups")
                        rates[count] = load.run(
                            "raw.receive",
                            topic=topic,
                            group=f"bench-fifo-{count}-{number}",
                            stock=plan.stock,
                            groups=1 + int(plan.seconds * 40_000 / plan.stock),
                            ack_each=False,
                            callers=CONSUMERS,
                            **window(bench),
                        )
                    found[name].append(rates[groups] | {ratio: rates[groups]["rate"] / rates[beside]["rate"]})
        return found

    return measure


def _due(load: str, topic: str, **options: Any) -> Callable[[Bench], Rounds]:
    """How late due messages are, with many others stored that are not due yet, and polls waiting."""

    def measure(bench: Bench) -> Rounds:
        plan, found = bench.plan, Rounds()
        for name in bench.stores:
            with bench.far_from_due(name, load) as generator:
                found[name] = []
                for number in range(plan.rounds):
                    bench.say(f"round {number + 1} of {plan.rounds}: {name}")
                    figures = generator.run(
                        load,
                        topic=topic,
                        group=topic,
                        rate=plan.latency_rate,
                        burst=plan.due_burst,
                        callers=4,
                        body_bytes=plan.body_bytes,
                        seconds=plan.latency_seconds,
                        **options,
                    )
                    late, burst = figures["late_ms"], figures["burst_ms"]
                    found[name].append(figures | late | {"burst_p99": burst["p99"]})
        return found

    return measure


CASES: dict[str, Case] = {
    "send_1x1": Case("send 1 per request, 1 caller", _send("raw.send", 32, 1, per_request=1)),
    "send_1x64": Case(f"send 1 per request, {CALLERS} callers", _send("raw.send", 512, CALLERS, per_request=1)),
    "send_32x1": Case("send 32 per request, 1 caller", _send("raw.send", 32, 1, per_request=32)),
    "send_32x64": Case(f"send 32 per request, {CALLERS} callers", _send("raw.send", 512, CALLERS, per_request=32)),
    "client_send_x1": Case("popclient send, 1 caller", _send("client.send", 32, 1, together=True)),
    "client_send_x64": Case(
        f"popclient send, {CALLERS} callers, coalesced", _send("client.send", 512, CALLERS, together=True)
    ),
    "client_send_alone_x64": Case(
        f"popclient send, {CALLERS} callers, a request each", _send("client.send", None, CALLERS, together=False)
    ),
    "receive_batch_x1": Case("receive 32 + batch ack, 1 consumer", _receive("raw.receive", 1, ack_each=False)),
    "receive_batch": Case(
        f"receive 32 + batch ack, {CONSUMERS} consumers", _receive("raw.receive", CONSUMERS, ack_each=False)
    ),
    "receive_each": Case(
        f"receive 32 + ack each, {CONSUMERS} consumers", _receive("raw.receive", CONSUMERS, ack_each=True)
    ),
    "pull_x1": Case("pull 32 in one frame, 1 caller", pull(1, in_one_piece=True)),
    "pull": Case(f"pull 32 in one frame, {CONSUMERS} callers", pull(CONSUMERS, in_one_piece=True)),
    "pull_frames_x1": Case("pull 32 by PullMessage, 1 caller", pull(1, in_one_piece=False)),
    "pull_frames": Case(f"pull 32 by PullMessage, {CONSUMERS} callers", pull(CONSUMERS, in_one_piece=False)),
    "bulk_pull_x1": Case("bulk pull, decoded by Arrow, 1 caller", bulk_pull(1)),
    "bulk_pull": Case("bulk pull, decoded by Arrow, a caller for each queue", bulk_pull(8)),
    "client_receive_batch": Case(
        f"popclient receive 32 + batch ack, {CONSUMERS} tasks", _receive("client.receive", CONSUMERS, ack_each=False)
    ),
    "client_receive_each": Case(
        f"popclient receive 32 + ack each, {CONSUMERS} tasks", _receive("client.receive", CONSUMERS, ack_each=True)
    ),
    "client_simple_x1": Case("popclient receive 32 + ack of all, 1 SimpleConsumer", _consume(1, pushes=False)),
    "client_simple_x8": Case("popclient receive 32 + ack of all, 8 SimpleConsumers", _consume(8, pushes=False)),
    "client_push_x1": Case("popclient, 1 PushConsumer", _consume(1, pushes=True)),
    "client_push_x8": Case("popclient, 8 PushConsumers", _consume(8, pushes=True)),
    "latency": Case("send to delivery, p50", _latency, key="p50", unit="ms"),
    "admin_calls": Case("administration, slowest call, 10,000 topics", admin_calls, key="slowest_ms", unit="ms"),
    "idle": Case("idle long polls, CPU of a core", _idle, key="percent", unit="%"),
    "backlog": Case("receive 32 + batch ack, large backlog", _backlog),
    "backlog_pull": Case("pull 32 anywhere, large backlog", on_large_backlog("pull.at_random"), unit="calls/s"),
    "backlog_seek": Case("seek by time, large backlog", on_large_backlog("pull.seek"), unit="calls/s"),
    "backlog_first_receive": Case(
        "first receive of a new group, large backlog", on_large_backlog("pull.first_receive"), unit="calls/s"
    ),
    "delay": Case(
        "due to delivery, p99, with many delayed messages stored", _due("due.delay", DELAY_TOPIC), key="p99", unit="ms"
    ),
    "hold": Case(
        "end of a hold to delivery, p99, with many messages held",
        _due("due.hold", HOLD_TOPIC, hold_seconds=HOLD_S),
        key="p99",
        unit="ms",
    ),
    "filter": Case(f"receive 32 + batch ack by a SQL filter that accepts a tenth, {CONSUMERS} consumers", _filter),
    "fifo": Case(
        f"receive 32 + batch ack, 1,000 message groups, {CONSUMERS} consumers", _fifo(1_000, 0, "of_unordered")
    ),
    "fifo_many": Case(
        f"receive 32 + batch ack, 100,000 message groups, {CONSUMERS} consumers", _fifo(100_000, 1_000, "of_few")
    ),
    "lite": Case(
        f"receive 32 + ack each, 100,000 lite topics, {CLIENTS} clients; batches and sends too", lite, "receive_each"
    ),
    "door": Case(f"TLS or not: send 1 per request, {CALLERS} callers", _door_sends(DOORS, CALLERS, 1)),
    "door_x1": Case("TLS or not: send 1 per request, 1 caller", _door_sends(DOORS, 1, 1)),
    "door_32": Case(f"TLS or not: send 32 per request, {CALLERS} callers", _door_sends(DOORS, CALLERS, 32)),
    "engine": Case(f"gRPC engine: send 1 per request, {CALLERS} callers", _door_sends(ENGINES, CALLERS, 1)),
    "engine_32": Case(f"gRPC engine: send 32 per request, {CALLERS} callers", _door_sends(ENGINES, CALLERS, 32)),
    "engine_receive": Case(
        f"gRPC engine: receive 32 + batch ack, {CONSUMERS} consumers",
        door(ENGINES, "raw.receive", topic=STOCK_TOPIC, ack_each=False, callers=CONSUMERS),
    ),
    **TOGETHER_CASES,
    "rebalance": Case(
        "from a member that joins or leaves until each queue has one owner", rebalance, key="max", unit="ms"
    ),
    "churn": Case("messages lost while members join and leave", churn, key="lost", unit="msg"),
    "start": Case("start to ready, large backlog", start, key="ready_s", unit="s"),
    "spark_dead_letters": Case("dead letters into Spark, per core", dead_letters, unit="rows/s"),
    "spark_micro_batch": Case("a micro-batch of a row in Spark", micro_batch, key="ms", unit="ms"),
    "spark_flights": Case("flights through Spark's queue source to Parquet", flights_to_parquet, unit="rows/s"),
}

# Measured only if they are named.
APART: dict[str, Case] = {**ABUSE_CASES, **INSTALLED_CASES, **MIRROR_CASES, **PEER_CASES, **SIZES_CASES}
# Names for several of them.
TOGETHER = {"abuse": tuple(ABUSE_CASES), "servers": tuple(TOGETHER_CASES), "sizes": tuple(SIZES_CASES)}
