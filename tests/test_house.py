"""The house itself: imports run one way, no test waits for a duration, time and chance are drawn in their places."""

from __future__ import annotations

import ast
import functools
import itertools
from collections.abc import Container, Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SLEEP_S_MAX = 0.2

# Who may import what, of our own packages; rooms are named as far as the rule reaches.
ALLOWED = {
    "popserver.domain": {"popserver.domain"},
    "popserver.store": {"popserver.store", "popserver.domain"},
    "popserver.broker": {"popserver.broker", "popserver.store", "popserver.domain"},
    "popserver.front": {"popserver.front", "popserver.domain"},
    "popserver.rpc": {"popserver.rpc", "popserver.front", "popserver.broker", "popserver.domain", "popproto"},
    "popclient": {"popclient", "popproto"},
    "popproto": {"popproto"},
}
# The only modules that ask which database it is; all others ask `store.dialect`.
ASK_THE_DIALECT = {"popserver.store.dialect", "popserver.store.database"}
# Types that stop at a door: what else may not name them.
KEPT_OUT = {
    "grpc": ("popserver.domain", "popserver.store", "popserver.broker", "popserver.front"),
    "popproto": ("popserver.domain", "popserver.store", "popserver.broker", "popserver.front"),
    "google": ("popserver.domain", "popserver.store", "popserver.broker"),
    "sqlalchemy": ("popserver.domain", "popserver.rpc", "popserver.front"),
    "time": ("popserver.domain", "popserver.store"),
    "datetime": ("popserver.domain", "popserver.store"),
}
SERVER = sorted((ROOT / "popserver").rglob("*.py"))
SOURCES = [
    *SERVER,
    *sorted((ROOT / "popclient").rglob("*.py")),
]
TESTS = sorted((ROOT / "tests").rglob("*.py"))


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def imports(path: Path) -> list[str]:
    """Every module a file names in an import, wherever in the file it stands."""
    found: list[str] = []
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found += (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide where things come from"
            found.append(node.module or "")
            found += (f"{node.module}.{each.name}" for each in node.names)
    return found


def nodes(paths: Iterable[Path]) -> Iterator[tuple[Path, ast.AST]]:
    """Every node of the files' syntax trees."""
    return ((path, node) for path in paths for node in ast.walk(tree(path)))


def is_within(module: str, room: str) -> bool:
    return module == room or module.startswith(f"{room}.")


def test_imports_run_one_way() -> None:
    for path in SOURCES:
        room = next((room for room in ALLOWED if is_within(module_of(path), room)), None)
        ours = [each for each in imports(path) if each.split(".")[0] in {"popserver", "popclient", "popproto"}]
        if room is None:  # the composition: app, cli, embedded broker
            strangers = [each for each in ours if is_within(each, "popclient")]
        else:
            strangers = [each for each in ours if not any(is_within(each, allowed) for allowed in ALLOWED[room])]
        assert [each for each in strangers if each != "popserver"] == [], path


def test_foreign_types_stop_at_their_door() -> None:
    for path, (foreign, rooms) in itertools.product(SOURCES, KEPT_OUT.items()):
        if any(is_within(module_of(path), room) for room in rooms):
            assert [each for each in imports(path) if is_within(each, foreign)] == [], path


def test_only_one_module_asks_which_database_it_is() -> None:
    """`sqlalchemy.dialects`, `connection.dialect` and `is_sqlite` stay behind the seam."""
    for path in [each for each in SERVER if module_of(each) not in ASK_THE_DIALECT]:
        assert [each for each in imports(path) if is_within(each, "sqlalchemy.dialects")] == [], path
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Attribute):
                assert node.attr not in {"dialect", "is_sqlite"}, f"{path.name}:{node.lineno} asks for {node.attr}"


def test_no_test_sleeps() -> None:
    """Tests wait for facts, and between two looks at most 200 ms."""
    for path, node in nodes(TESTS):
        if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith("sleep") or not node.args:
            continue
        argument = node.args[0]
        if isinstance(argument, ast.Constant) and isinstance(argument.value, int | float):
            assert argument.value <= SLEEP_S_MAX, f"{path.name}:{node.lineno} sleeps {argument.value} s"


def test_only_the_clock_reads_time() -> None:
    """Of the server's rooms; `time.perf_counter` and the like measure, they do not tell the time."""
    readers = {"time.time", "time.time_ns", "time.monotonic", "datetime.now", "datetime.datetime.now"}
    found = [
        f"{module_of(path)}:{node.lineno}"
        for path in SOURCES
        if any(is_within(module_of(path), room) for room in ("popserver.domain", "popserver.store", "popserver.broker"))
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in readers
    ]
    assert [each for each in found if not each.startswith("popserver.broker.clock:")] == []


def test_the_users_random_numbers_are_left_alone() -> None:
    """Who has seeded `random` counts on what comes next: a thread of ours must not draw from it."""
    for path, node in nodes(SOURCES):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "random":
            assert node.attr in {"Random", "SystemRandom"}, f"{path.name}:{node.lineno} draws random.{node.attr}"


def test_no_files_of_the_client_import_each_other() -> None:
    """Imports inside functions and under TYPE_CHECKING count too."""
    files = {module_of(path): path for path in SOURCES if is_within(module_of(path), "popclient")}
    unordered = {module: set(imported_files(path, files)) for module, path in files.items()}
    while ready := [module for module, needed in unordered.items() if not needed & unordered.keys()]:
        for module in ready:
            del unordered[module]
    assert unordered == {}


def imported_files(path: Path, files: Container[str]) -> Iterator[str]:
    """The modules among `files` that a file imports, or imports names from."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{each.name}" for each in node.names]
            yield from (name if name in files else node.module or "" for name in names)
