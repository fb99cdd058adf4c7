"""Draws the picture in architecture.md: the rooms of tests/test_house.py, and their imports.

python docs/architecture.py           rewrites the picture
python docs/architecture.py --check   writes nothing; exits with 1 if the picture is stale
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOUSE = ROOT / "tests" / "test_house.py"
PAGE = Path(__file__).with_suffix(".md")
START, END = "<!-- The picture: python docs/architecture.py -->\n", "<!-- End of the picture. -->\n"

# From the ground up. A room may import rooms of its own storey and of those below it.
STOREYS: dict[str, tuple[str, ...]] = {
    "words": ("model", "filters"),
    "machine": ("postgres", "sqlite", "database", "engine", "front", "transport", "http2", "grpcio"),
    "what is stored": ("access", "catalog", "messages", "members", "cluster", "fifo", "delivery", "lite"),
    "what happens to messages": ("producing", "settling", "pulling", "maintenance", "clients", "receiving", "bulk"),
    "what operators ask for": (
        "dead_letters",
        "importing",
        "administration",
        "charts",
        "mirrors",
        "alerts",
        "rocketmq_admin",
        "progress",
        "metrics",
        "client_metrics",
        "web",
    ),
}
TOP = "serve, app.py, services, broker"
ABOVE = {"serve", "sizing", "services", "broker"}  # rooms that belong to the top


def storeys() -> dict[str, tuple[str, ...]]:
    """The rooms of tests/test_house.py, by storey."""
    order = rooms()
    drawn = {room for storey in STOREYS.values() for room in storey}
    assert drawn == set(order), f"put each room of {HOUSE.name} into a storey: {sorted(drawn ^ set(order))}"
    return {name: tuple(sorted(storey, key=order.index)) for name, storey in STOREYS.items()}


def rooms() -> list[str]:
    """The folders of popserver, in the order in which they may import each other."""
    tables = [node for node in ast.parse(HOUSE.read_text()).body if isinstance(node, ast.Assign)]
    [order] = [ast.literal_eval(node.value) for node in tables if ast.unparse(node.targets[0]) == "ROOMS"]
    return [room for room in order if (ROOT / "popserver" / room / "__init__.py").exists() and room not in ABOVE]


def picture() -> str:
    """A Mermaid chart: the storeys with their rooms, and an arrow where one storey imports another."""
    lines = ["```mermaid", "flowchart TD", f'    top["{TOP}"]']
    for number, (name, storey) in reversed(list(enumerate(storeys().items()))):
        lines.append(f'    s{number}["<b>{name}</b><br/>{" · ".join(storey)}"]')
    lines.append(f"    top --> s{len(storeys()) - 1}")
    down = {(upper, lower) for upper, lower in arrows() if upper > lower}
    # An arrow over a storey between goes without saying.
    direct = [(a, b) for a, b in down if not any((a, c) in down and (c, b) in down for c in range(b + 1, a))]
    lines += [f"    s{upper} --> s{lower}" for upper, lower in sorted(direct, reverse=True)]
    lines += [f"    s{lower} -. still .-> s{upper}" for lower, upper in sorted(arrows() - down)]
    return "\n".join([*lines, "```", ""])


def arrows() -> set[tuple[int, int]]:
    """Pairs of storeys of which the first imports the second."""
    storey_of = {room: number for number, storey in enumerate(storeys().values()) for room in storey}
    found = set()
    for room, number in storey_of.items():
        for path in (ROOT / "popserver" / room).rglob("*.py"):
            others = {storey_of[other] for other in imported_rooms(path) if other in storey_of}
            found |= {(number, other) for other in others if other != number}
    return found


def imported_rooms(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("popserver."):
            yield str(node.module).split(".")[1]
        elif isinstance(node, ast.ImportFrom) and node.module == "popserver":
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.Import):
            yield from (each.name.split(".")[1] for each in node.names if each.name.startswith("popserver."))


def drawn(page: str) -> str:
    before, _, rest = page.partition(START)
    return before + START + picture() + END + rest.partition(END)[2]


if __name__ == "__main__":
    now = PAGE.read_text()
    if "--check" not in sys.argv:
        PAGE.write_text(drawn(now))
    elif now != drawn(now):
        sys.exit("the picture in docs/architecture.md is stale; run: python docs/architecture.py")
