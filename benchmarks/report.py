"""The table and bench.json: medians of rounds, and ratios computed for each round."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from benchmarks.case import Rounds
from benchmarks.cases import APART, CASES
from benchmarks.lite import LITE_FIGURES, lite_remarks


class Target(NamedTuple):
    """A target, as a ratio or a limit. `got` reads the figure from the results; None if it was not measured."""

    name: str
    wanted: float
    got: Callable[[Mapping[str, Any], str], float | None]
    at_most: bool = False
    variants: tuple[str, ...] = ("sqlite", "postgres")

    def reached(self, got: float) -> bool:
        return got <= self.wanted if self.at_most else got >= self.wanted


def summed_up(name: str, rounds: Rounds) -> dict[str, Any]:
    """One case's entry of bench.json."""
    case = CASES.get(name) or APART[name]
    return {
        "title": case.title,
        "unit": case.unit,
        "variants": {variant: _figures(case.key, variant, rounds) for variant in rounds},
    }


def _figures(key: str, variant: str, rounds: Rounds) -> dict[str, Any]:
    own = rounds[variant]
    if "skipped" in own[0]:
        return own[0] | {"rounds": []}
    figures: dict[str, Any] = {"median": _median(each[key] for each in own), "rounds": own}
    if variant != "noop" and "noop" in rounds:
        figures["of_noop"] = _median(
            each[key] / ceiling[key] for each, ceiling in zip(own, rounds["noop"], strict=True) if ceiling[key]
        )
    if variant != "plaintext" and "plaintext" in rounds:
        figures["of_plaintext"] = _median(
            each[key] / plain[key] for each, plain in zip(own, rounds["plaintext"], strict=True)
        )
    if "insert_rate" in own[0]:
        figures["of_insert"] = _median(each[key] / each["insert_rate"] for each in own)
    if variant != "1 server" and "1 server" in rounds:
        figures["of_one"] = _median(each[key] / one[key] for each, one in zip(own, rounds["1 server"], strict=True))
    for extra in _EXTRAS:
        if extra in own[0]:
            figures[extra] = _median(each[extra] for each in own)
    return figures


def table(results: Mapping[str, Any]) -> str:
    """The results as text: one line per case and variant."""
    lines = [_LINE.format("case", "server", "figure", "unit", "of no-op", "of insert", "server", "load", "CPU µs/msg")]
    lines.append("-" * len(lines[0]))
    for name, result in results.items():
        for index, (variant, figures) in enumerate(result["variants"].items()):
            lines.append(
                _LINE.format(
                    name if index == 0 else "",
                    variant,
                    _number(figures["median"]),
                    result["unit"],
                    _ratio(figures.get("of_noop")),
                    _ratio(figures.get("of_insert")),
                    _percent(figures.get("server_busy")),
                    _percent(figures.get("load_busy")),
                    _number(figures.get("server_us_per_message")),
                )
                + _remark(figures)
            )
    return "\n".join(lines)


def targets(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The targets that this run has measured."""
    found = []
    for target in TARGETS:
        for variant in target.variants:
            got = target.got(results, variant)
            if got is not None:
                found.append(
                    {
                        "name": target.name,
                        "variant": variant,
                        "wanted": target.wanted,
                        "got": got,
                        "reached": target.reached(got),
                    }
                )
    return found


def targets_table(found: list[dict[str, Any]]) -> str:
    return "\n".join(
        f"{'reached' if each['reached'] else 'MISSED ':8} {each['name']:62} {each['variant']:9}"
        f" wanted {each['wanted']:<5g} got {each['got']:.3g}"
        for each in found
    )


def _at(case: str, key: str) -> Callable[[Mapping[str, Any], str], float | None]:
    def got(results: Mapping[str, Any], variant: str) -> float | None:
        value: float | None = results.get(case, {}).get("variants", {}).get(variant, {}).get(key)
        return value

    return got


def _over(case: str, other: str) -> Callable[[Mapping[str, Any], str], float | None]:
    """One case's rate over another's, round by round."""

    def got(results: Mapping[str, Any], variant: str) -> float | None:
        both = [results.get(name, {}).get("variants", {}).get(variant) for name in (case, other)]
        if None in both:
            return None
        pairs = zip(both[0]["rounds"], both[1]["rounds"], strict=True)
        return _median(one["rate"] / another["rate"] for one, another in pairs)

    return got


def _of_rounds(case: str, key: str) -> Callable[[Mapping[str, Any], str], float | None]:
    """The median of a figure that is in each round."""

    def got(results: Mapping[str, Any], variant: str) -> float | None:
        rounds = results.get(case, {}).get("variants", {}).get(variant, {}).get("rounds", [])
        return _median(each[key] for each in rounds) if rounds and key in rounds[0] else None

    return got


TARGETS = (
    Target("64 callers, single sends: of the no-op", 0.8, _at("send_1x64", "of_noop"), variants=("sqlite",)),
    Target("32 per request, 1 caller: of insert, 32 rows per transaction", 0.6, _at("send_32x1", "of_insert")),
    Target("32 per request, 64 callers: of insert, 512 rows per transaction", 0.6, _at("send_32x64", "of_insert")),
    Target("receive 32 + batch ack: of the no-op", 0.7, _at("receive_batch", "of_noop")),
    Target("pull 32 in one frame, 64 callers: over receive + batch ack", 1.5, _over("pull", "receive_batch")),
    Target("pull 32 in one frame, 1 caller: over receive + batch ack", 1.5, _over("pull_x1", "receive_batch_x1")),
    Target("bulk pull: over PullMessage, 64 callers", 5, _over("bulk_pull", "pull_frames")),
    Target("bulk pull, 1 caller: over PullMessage, 1 caller", 5, _over("bulk_pull_x1", "pull_frames_x1")),
    Target("popclient, 64 callers: over one request per message", 3, _over("client_send_x64", "client_send_alone_x64")),
    Target("popclient, ack each: over batch ack", 0.7, _over("client_receive_each", "client_receive_batch")),
    Target("receive + ack, large backlog: over the small one", 0.9, _at("backlog", "of_small")),
    Target("pull anywhere, large backlog: over the small one", 0.9, _at("backlog_pull", "of_small")),
    Target("seek by time, large backlog: over the small one", 0.9, _at("backlog_seek", "of_small")),
    Target("first receive, large backlog: over the small one", 0.9, _at("backlog_first_receive", "of_small")),
    Target("SQL filter that accepts a tenth: over the tag filter", 0.7, _at("filter", "of_tag")),
    Target("1,000 message groups: over messages in none", 0.7, _at("fifo", "of_unordered")),
    Target("100,000 message groups: over 1,000", 0.95, _at("fifo_many", "of_few")),
    Target("100,000 lite topics, single sends: over an ordinary topic", 0.9, _at("lite", "send_1_of_plain")),
    Target("100,000 lite topics, sends of 32: over an ordinary topic", 0.9, _at("lite", "send_32_of_plain")),
    Target("100,000 lite topics, receive, ack each: over an ordinary topic", 0.9, _at("lite", "receive_each_of_plain")),
    Target("100,000 lite topics, receive, one ack: over an ordinary topic", 0.9, _at("lite", "receive_batch_of_plain")),
    Target("delayed messages: p50 of their lateness, ms", 10, _at("delay", "p50"), at_most=True),
    Target("held messages: p50 of their lateness, ms", 10, _at("hold", "p50"), at_most=True),
    Target(
        "delayed messages, popclient waits: p50 of their lateness, ms",
        10,
        _of_rounds("installed", "due_p50"),
        at_most=True,
        variants=("default",),
    ),
    Target(
        "delayed messages, the official Java client waits: p50 of it, ms",
        10,
        _of_rounds("installed", "java_due_p50"),
        at_most=True,
        variants=("default",),
    ),
    Target("delayed messages: p99 of their lateness, ms", 100, _at("delay", "median"), at_most=True),
    Target("held messages: p99 of their lateness, ms", 100, _at("hold", "median"), at_most=True),
    Target("delayed messages, all due at once: p99 of it, ms", 1_000, _at("delay", "burst_p99"), at_most=True),
    Target(
        "idle long polls: % of a core", 2, _at("idle", "median"), at_most=True, variants=("noop", "sqlite", "postgres")
    ),
    Target(
        "2 servers on one Postgres, send 32: of one", 1.3, _at("servers_send_32", "of_one"), variants=("2 servers",)
    ),
    Target(
        "2 servers on one Postgres, receive: of one", 1.3, _at("servers_receive", "of_one"), variants=("2 servers",)
    ),
    Target("a member joins or leaves: ms to one owner each, at most", 1_500, _at("rebalance", "median"), at_most=True),
    Target("members join and leave under load: messages lost", 0, _at("churn", "median"), at_most=True),
    Target(
        "administration, 10,000 topics × 10 groups: ms of the slowest call",
        200,
        _at("admin_calls", "median"),
        at_most=True,
    ),
    Target("start to ready, large backlog: seconds", 1, _at("start", "median"), at_most=True),
    Target("dead letters in Spark: of JDBC", 1.3, _at("spark_dead_letters", "of_jdbc"), variants=("postgres",)),
    Target(
        "dead letters in Spark, two columns: of JDBC",
        0.8,
        _at("spark_dead_letters", "narrow_of_jdbc"),
        variants=("postgres",),
    ),
    Target(
        "dead letters in Spark, properties as JSON: of JDBC without lists and times",
        0.6,
        _at("spark_dead_letters", "of_jdbc_raw"),
        variants=("postgres",),
    ),
    Target(
        "dead letters in Spark, accelerated: of JDBC",
        1,
        _at("spark_dead_letters", "of_jdbc"),
        variants=("postgres ADBC",),
    ),
    Target("dead letters in Spark: of SQLAlchemy's rows", 1, _at("spark_dead_letters", "of_rows")),
    Target("micro-batch of dead letters: of an empty one", 1.2, _at("spark_micro_batch", "of_empty"), at_most=True),
    Target(
        "micro-batch of a queue: of an empty one",
        1.2,
        _at("spark_micro_batch", "of_empty"),
        at_most=True,
        variants=("sqlite queue", "postgres queue"),
    ),
)

_EXTRAS = (
    "server_busy",
    "load_busy",
    "postgres_busy",
    "server_us_per_message",
    "cpu_us_per_message",
    "postgres_us_per_message",
    "cpu_of_one",
    "server_cpu_of_one",
    "messages_per_transaction",
    "transactions_per_s",
    "wal_bytes_per_message",
    "insert_rate",
    "of_small",
    "of_tag",
    "of_unordered",
    "of_few",
    *LITE_FIGURES,
    "of_frames",
    "of_jdbc",
    "of_jdbc_raw",
    "maps_of_jdbc_raw",
    "narrow_of_jdbc",
    "json_rate",
    "of_rows",
    "of_empty",
    "of_parquet",
    "p50",
    "p99",
    "burst_p99",
    "join_p50",
    "leave_p50",
    "sent",
    "repeats",
    "changes",
)
_OTHERS = {
    "of_jdbc": "JDBC",
    "of_jdbc_raw": "raw JDBC, as JSON",
    "maps_of_jdbc_raw": "raw JDBC, as maps",
    "narrow_of_jdbc": "JDBC, two columns",
    "of_rows": "SQLAlchemy's rows",
    "of_empty": "an empty micro-batch",
    "of_parquet": "Parquet",
}
_LINE = "{:22} {:14} {:>9} {:6} {:>8} {:>9} {:>7} {:>6} {:>10}"


def _median(values: Any) -> float:
    listed = list(values)
    return statistics.median(listed) if listed else 0.0


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _remark(figures: Mapping[str, Any]) -> str:
    remarks = []
    if "insert_rate" in figures:
        remarks.append(f"raw insert {figures['insert_rate']:,.0f} rows/s")
    if "burst_p99" in figures:
        remarks.append(f"p50 {figures['p50']:.3g} ms, of a burst p99 {figures['burst_p99']:.3g} ms")
    elif "p99" in figures:
        remarks.append(f"p99 {figures['p99']:.3g} ms")
    if "join_p50" in figures:
        remarks.append(f"p50 of joining {figures['join_p50']:.0f} ms, of leaving {figures['leave_p50']:.0f} ms")
    if "repeats" in figures:
        remarks.append(
            f"{figures['repeats']:,.0f} repeats of {figures['sent']:,.0f} in {figures['changes']:.0f} changes"
        )
    if "postgres_busy" in figures:
        remarks.append(f"Postgres {figures['postgres_busy']:.0%}, all {figures['cpu_us_per_message']:.0f} CPU µs/msg")
    if "of_one" in figures:
        remarks.append(f"{figures['of_one']:.2f} of one")
    if "cpu_of_one" in figures:
        remarks.append(
            f"CPU {figures['cpu_of_one']:.2f} of one (servers {figures['server_cpu_of_one']:.2f}),"
            f" {figures['messages_per_transaction']:.3g} messages per transaction,"
            f" {figures['wal_bytes_per_message']:,.0f} bytes of WAL per message"
        )
    if "of_plaintext" in figures:
        remarks.append(f"{figures['of_plaintext']:.2f} of plaintext")
    if "of_frames" in figures:
        remarks.append(f"{figures['of_frames']:.2f} of a frame per message")
    if "of_small" in figures:
        remarks.append(f"{figures['of_small']:.2f} of the small backlog")
    remarks += lite_remarks(figures)
    if "of_tag" in figures:
        remarks.append(f"{figures['of_tag']:.2f} of the tag filter")
    for ratio, other in _OTHERS.items():
        if ratio in figures:
            remarks.append(f"{figures[ratio]:.2f} of {other}")
    return "  " + ", ".join(remarks) if remarks else ""
