"""Each table has a keeper, the one module that names it; `tests/keepers.txt` lists who else still does.

Some keepers are not made yet: then all files that name the table are on the list.

The list only shrinks: a file that is not on it may not name another's table, and one that no longer does is taken off.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from popserver.database.schema import metadata

ROOT = Path(__file__).parents[1]
SERVER = ROOT / "popserver"
LIST = Path(__file__).with_name("keepers.txt")
SCHEMA = "popserver.database.schema"
TABLES = frozenset(metadata.tables)
# The schema and its views, and what looks at every table: migrations, checks, backups.
EVERYWHERE = ("database/",)
# Two modules where two needs of one noun are two subjects.
KEEPERS: dict[str, str | tuple[str, ...]] = {
    "topic": "catalog/topics.py",
    "queue": ("catalog/queues.py", "catalog/queue_offsets.py"),
    "consumer_group": "catalog/groups.py",
    "pause": "catalog/pauses.py",
    # What changes rows is in the first one; the others find them.
    "message": (
        "messages/stored.py",
        "messages/by_key.py",
        "messages/parts.py",
        "messages/ranges.py",
        "messages/seek.py",
    ),
    "keyed_message": "messages/keyed.py",
    "pending": ("messages/pending_messages.py", "producing/pending_facts.py"),
    "idempotency": "messages/keys.py",
    "progress": "catalog/progress.py",
    # Here and below, searches have a module and changes another one.
    "message_group_progress": ("fifo/positions.py", "fifo/moving_positions.py"),
    "message_group_start": ("fifo/start_offsets.py", "fifo/moving_starts.py"),
    # What changes rows is in the first one; the others find and lock them.
    "delivery": (
        "delivery/deliveries.py",
        "delivery/holds.py",
        "delivery/due.py",
        "delivery/ready.py",
        "fifo/runs.py",
        "delivery/delivered.py",
    ),
    "history": "delivery/history.py",
    "lite_topic": "messages/lite_topics.py",
    "lite_subscription": "members/lite_subscriptions.py",
    "lite_client": "members/lite_subscriptions.py",
    "dead_letter": "messages/dead_letters.py",
    "redrive": "messages/redrives.py",
    "redrive_plan": "catalog/redrive_plans.py",
    "server": "cluster/sql.py",
    "client": "cluster/sql.py",
    "clock": "maintenance/clock_notes.py",
    "member": "members/sql.py",
    "queue_lock": "members/locks.py",
    "acl_user": "access/sql.py",
    "acl_policy": "access/sql.py",
}
WRITING = {"insert", "update", "delete", "sooner", "remove_step"}
_IN_TEXT = re.compile(rf"\b(FROM|JOIN|INTO|UPDATE|USING)\s+({'|'.join(sorted(TABLES))})\b")


class Named(NamedTuple):
    table: str
    file: str

    def __str__(self) -> str:
        return f"{self.table} {self.file}"


def test_only_its_keeper_names_a_table() -> None:
    found, listed = set(named()), set(_listed())
    assert not (new := found - listed), f"ask the keeper instead: {', '.join(sorted(map(str, new)))}"
    assert not (gone := listed - found), f"take off {LIST.name}: {', '.join(sorted(map(str, gone)))}"


def test_every_table_has_a_keeper() -> None:
    assert set(KEEPERS) == TABLES


@pytest.mark.parametrize(
    ("table", "keeper"), [("delivery", "delivery/deliveries.py"), ("message", "messages/stored.py")]
)
def test_one_module_changes_a_table(table: str, keeper: str) -> None:
    writers = {
        str(file.relative_to(SERVER))
        for file in SERVER.rglob("*.py")
        if table in _written_by(file) and table in _tables_of(file)
    }
    assert {each for each in writers if not each.startswith(EVERYWHERE)} == {keeper}


def _written_by(file: Path) -> set[str]:
    """The names of tables that statements of a module insert into, update or delete from."""
    calls = (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call))
    written = (each for call in calls if _called(call) in WRITING for each in call.args)
    return {name.id for each in written for name in ast.walk(each) if isinstance(name, ast.Name)}


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def named() -> Iterator[Named]:
    """Tables and the files that name them and do not keep them."""
    for file in sorted(SERVER.rglob("*.py")):
        name = str(file.relative_to(SERVER))
        if not name.startswith(EVERYWHERE):
            for table in _tables_of(file):
                if name not in _keepers_of(table):
                    yield Named(table, name)


def _keepers_of(table: str) -> tuple[str, ...]:
    keepers = KEEPERS[table]
    return (keepers,) if isinstance(keepers, str) else keepers


@cache
def _tables_of(file: Path) -> frozenset[str]:
    tables: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == SCHEMA:
            tables |= {each.name for each in node.names} & TABLES
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            tables |= {found[2] for found in _IN_TEXT.finditer(node.value)}
    return frozenset(tables)


def _listed() -> Iterator[Named]:
    for line in LIST.read_text().splitlines():
        if line and not line.startswith("#"):
            yield Named(*line.split())
