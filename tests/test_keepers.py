"""Each table has a keeper, the modules that name it: all others ask them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from popserver.database.schema import metadata

ROOT = Path(__file__).parents[1]
SERVER = ROOT / "popserver"
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
        "messages/columns.py",
        "messages/parts.py",
        "messages/ranges.py",
        "messages/seek.py",
    ),
    "keyed_message": "messages/keyed.py",
    "pending": ("messages/pending_messages.py", "producing/pending_facts.py"),
    "idempotency": "messages/repeats.py",
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
    "chart_point": "charts/points.py",
    "alert": "alerts/told.py",
    "mirror": "mirrors/records.py",
    "acl_user": "access/sql.py",
    "acl_policy": "access/sql.py",
}
WRITING = {"insert", "update", "delete", "sooner", "remove_step"}
PAGE = SERVER.parent / "docs" / "data.md"
_ROW = re.compile(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|([^|]*)\|", re.MULTILINE)
_IN_TEXT = re.compile(rf"\b(FROM|JOIN|INTO|UPDATE|USING)\s+({'|'.join(sorted(TABLES))})\b")


def test_only_its_keeper_names_a_table() -> None:
    found = [
        f"{name} names {table}"
        for name, file in _files()
        for table in sorted(_tables_of(file))
        if name not in _keepers_of(table)
    ]
    assert not found, f"ask the keeper instead: {', '.join(found)}"


def test_only_keepers_know_old_versions_of_rows() -> None:
    users = {name for name, file in _files() if "popserver.database.newest" in file.read_text()}
    assert not (found := users - {each for table in TABLES for each in _keepers_of(table)}), found


def test_every_table_has_a_keeper() -> None:
    assert set(KEEPERS) == TABLES


@pytest.mark.parametrize(
    ("table", "keeper"), [("delivery", "delivery/deliveries.py"), ("message", "messages/stored.py")]
)
def test_one_module_changes_a_table(table: str, keeper: str) -> None:
    writers = {name for name, file in _files() if table in _written_by(file) and table in _tables_of(file)}
    assert writers == {keeper}


def _files() -> Iterator[tuple[str, Path]]:
    for file in sorted(SERVER.rglob("*.py")):
        name = str(file.relative_to(SERVER))
        if not name.startswith(EVERYWHERE):
            yield name, file


def test_the_page_names_the_keepers_and_who_asks_them() -> None:
    rows = {table: (keepers, rooms.strip()) for table, keepers, rooms in _ROW.findall(PAGE.read_text())}
    for table in KEEPERS:
        keepers, rooms = rows[table]
        assert set(re.findall(r"`([\w/]+\.py)`", keepers)) == set(_keepers_of(table))
        assert rooms == ", ".join(sorted(_askers(table))), f"correct who asks for `{table}` in {PAGE.name}"


def _askers(table: str) -> set[str]:
    """The rooms whose files import a keeper of the table."""
    modules = {f"popserver.{keeper.removesuffix('.py').replace('/', '.')}" for keeper in _keepers_of(table)}
    files = ((file, str(file.relative_to(SERVER))) for file in SERVER.rglob("*.py"))
    return {
        name.partition("/")[0]
        for file, name in files
        if name not in _keepers_of(table) and modules & _imported_by(file)
    }


@cache
def _imported_by(file: Path) -> frozenset[str]:
    nodes = (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom))
    return frozenset(
        name for node in nodes for each in node.names for name in (node.module or "", f"{node.module}.{each.name}")
    )


def _written_by(file: Path) -> set[str]:
    """The names of tables that statements of a module insert into, update or delete from."""
    calls = (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call))
    written = (each for call in calls if _called(call) in WRITING for each in call.args)
    return {name.id for each in written for name in ast.walk(each) if isinstance(name, ast.Name)}


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


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
