"""The house itself: imports run one way, no test waits for a duration, time and chance are drawn in their places."""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SLEEP_S_MAX = 0.2
AT_ONCE = ("asyncio.gather", "asyncio.shield")  # awaited without a turn of the event loop if all of it has ended

# A room may import the rooms before it, and itself. The last ones put the server together.
ROOMS = (
    "model", "filters", "postgres", "sqlite", "database", "engine", "front", "transport", "http2", "grpcio",
    "access", "catalog", "messages", "members", "cluster", "fifo", "delivery", "lite", "producing", "settling",
    "maintenance", "clients", "pulling", "dead_letters", "importing", "receiving", "administration", "charts",
    "mirrors", "alerts", "rocketmq_admin", "bulk", "progress", "config", "broker", "metrics", "client_metrics", "web",
    "services", "logs", "certificates", "monitoring", "app", "in_process", "offline", "serve", "sizing", "cli",
    "pytest_plugin",
)  # fmt: skip
# What operators and Spark use can be taken away: only what puts the server together knows these rooms.
# The same for the client. An `__init__` may hand out what comes later.
CLIENT_ROOMS = (
    "errors", "_arguments", "_urls", "_version", "_forks", "_patched", "_tasks", "_loop", "keep_alive", "offset_file",
    "config", "message", "receipts", "listening", "otel", "_tracing", "_session", "_producer", "_engine", "_simple",
    "_push", "_lite", "_queues", "_progress", "_consume", "_pull", "_queue_push", "admin", "remoting", "sql", "aio",
    "_sync", "mirror", "moving", "frameworks", "spark", "cli",
)  # fmt: skip
# Rooms of the console.
CONSOLE_ROOMS = (
    "words", "settings", "copies", "bodies", "mirror_looks", "pulse", "rates", "pictures", "sessions", "guard", "jobs",
    "rendering", "visits", "paging", "desk", "pages", "app", "serving", "cli",
)  # fmt: skip
# Rooms of what their ports have in common.
PORT_ROOMS = ("addresses", "shares", "bodies", "connections", "serving")
# Rooms of the client that may have more files than others.
FILES_MAX_OF = {"_session": 14, "cli": 14}
REMOVABLE = {"bulk", "client_metrics", "progress", "dead_letters", "importing", "rocketmq_admin", "web"}
ASSEMBLY = {"broker", "services", "monitoring", "app"}
# Other packages of ours that a package may import.
ALLOWED = {
    "popserver": {"popport", "popproto"},
    "popclient": {"popproto"},
    "popconsole": {"popclient", "popport"},
    "popport": set(),
    "popproto": set(),
}
# Where the wire's types are known: everything else takes and gives the rooms' own types.
WIRE = (
    "popserver.transport",
    "popserver.access.gate",
    "popserver.access.rights",
    "popserver.access.rpc",
    "popserver.bulk.rpc",
    "popserver.clients.command_frames",
    "popserver.clients.member_stream",
    "popserver.clients.routes",
    "popserver.clients.rpc",
    "popserver.clients.settings",
    "popserver.clients.telemetry_writer",
    "popserver.dead_letters.rpc",
    "popserver.importing.rpc",
    "popserver.alerts.rpc",
    "popserver.charts.rpc",
    "popserver.administration.clients",
    "popserver.administration.convert",
    "popserver.administration.rpc",
    "popserver.lite.rpc",
    "popserver.members.rpc",
    "popserver.mirrors.rpc",
    "popserver.client_metrics.rpc",
    "popserver.offline",
    "popserver.producing.rpc",
    "popserver.producing.sent",
    "popserver.progress.rpc",
    "popserver.progress.rpc_rocketmq",
    "popserver.pulling.rpc",
    "popserver.pulling.rpc_offsets",
    "popserver.pulling.rpc_send_back",
    "popserver.receiving.rpc",
    "popserver.rocketmq_admin.consumers",
    "popserver.rocketmq_admin.messages",
    "popserver.rocketmq_admin.rpc",
    "popserver.services",
    "popserver.settling.rpc",
    "popserver.web",
)
# Types that stop at a door: what may name them.
KEPT_IN = {
    "grpc": ("popserver.grpcio", "popclient"),
    "popproto": (*WIRE, "popclient"),
    "google": (*WIRE, "popclient"),
    "prometheus_client": ("popserver.metrics",),
    "opentelemetry": ("popserver.metrics.otlp", "popserver.client_metrics.rpc", "popclient"),
    "starlette": ("popserver.web", "popconsole", "popport"),
    "uvicorn": ("popserver.web", "popconsole.serving", "popport"),
    "time": (
        "popserver.engine.clock",
        "popserver.engine.meters",
        "popserver.serve",
        "popclient",
        "popconsole.desk",
        "popconsole.pulse",
        "popconsole.sessions",
    ),
    "datetime": (
        "popserver.model.times",
        "popserver.front",
        "popserver.transport",
        "popserver.access.flow",
        "popserver.dead_letters.flow",
        "popserver.certificates",
        "popserver.in_process",
        "popclient",
        "popconsole",
    ),
}
# Rooms without a statement, and modules of the wire, do not know the database's library.
WITHOUT_SQL = ("popserver.model", "popserver.filters", "popserver.front", *WIRE)
# A room is read in one sitting. Lists may be longer: of all tables, and of what can change a delivery.
FILES_MAX, LINES_MAX, LINES_MIN = 12, 400, 25
SCHEMA = "popserver.database.schema"
LISTS = {SCHEMA, "popserver.delivery.deliveries"}
FILES_MAX_OF_SERVER = {"messages": 14}
# The only modules that ask which database it is; all others ask `database.dialect`.
ASK_THE_DIALECT = {"popserver.database.dialect", "popserver.database.database", "popserver.database.statement"}
SERVER = sorted((ROOT / "popserver").rglob("*.py"))
SOURCES = [
    *SERVER,
    *sorted((ROOT / "popclient").rglob("*.py")),
    *sorted((ROOT / "popconsole").rglob("*.py")),
    *sorted((ROOT / "popport").rglob("*.py")),
]
TESTS = [*sorted((ROOT / "tests").rglob("*.py")), *sorted((ROOT / "proof").rglob("*.py"))]


@functools.cache
def tree(path: Path) -> Sequence[ast.AST]:
    """All nodes of the file's syntax tree."""
    return [*ast.walk(ast.parse(path.read_text()))]


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def imports(path: Path) -> list[str]:
    """Every module a file names in an import, wherever in the file it stands."""
    found: list[str] = []
    for node in tree(path):
        if isinstance(node, ast.Import):
            found += (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide where things come from"
            found.append(node.module or "")
            found += (f"{node.module}.{each.name}" for each in node.names)
    return found


def nodes(paths: Iterable[Path]) -> Iterator[tuple[Path, ast.AST]]:
    """Every node of the files' syntax trees."""
    return ((path, node) for path in paths for node in tree(path))


def dotted(node: ast.AST) -> str:
    """`a.b.c` as it is written; empty for what is no such name."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


MODULES = {module_of(path): path for path in SERVER}
CLIENT = {module_of(path): path for path in sorted((ROOT / "popclient").rglob("*.py"))}
CONSOLE = {module_of(path): path for path in sorted((ROOT / "popconsole").rglob("*.py"))}
PORT = {module_of(path): path for path in sorted((ROOT / "popport").rglob("*.py"))}


# The packages outside of the server: their files, and the order of their rooms.
OUTSIDE = {"popclient": (CLIENT, CLIENT_ROOMS), "popconsole": (CONSOLE, CONSOLE_ROOMS), "popport": (PORT, PORT_ROOMS)}


def is_within(module: str, room: str) -> bool:
    return module == room or module.startswith(f"{room}.")


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def arrows(path: Path) -> list[str]:
    """The files of the server that one of them imports."""
    found = dict.fromkeys(imports(path))
    return [
        each for each in found if each in MODULES and each != module_of(path) and MODULES[each].name != "__init__.py"
    ]


def test_imports_run_one_way() -> None:
    rank = {room: index for index, room in enumerate(ROOMS)}
    against = {
        (module_of(path), each)
        for path in SERVER
        if room_of(module_of(path))
        for each in arrows(path)
        if rank[room_of(each)] > rank[room_of(module_of(path))]
    }
    assert against == set()


def kind_of(module: str) -> int:
    """0: rules, which are pure; 1: statements; 2: flow, which waits; 3: the wire."""
    if any(is_within(module, each) for each in WIRE):
        return 3
    named = imports(MODULES[module])
    if any(is_within(each, "asyncio") for each in named) or {"popserver.engine.writer", "popserver.engine.reader"} & {
        *named
    }:
        return 2
    return 1 if any(is_within(each, "sqlalchemy") for each in named) else 0


def test_inside_a_room_imports_run_from_the_wire_to_the_rules() -> None:
    """Flow may use statements and rules, statements may use rules; rules may name the types of statements."""
    against = {
        (module, each)
        for module, path in MODULES.items()
        for each in arrows(path)
        if room_of(each) == room_of(module) not in ASSEMBLY and kind_of(each) > max(kind_of(module), 1)
    }
    assert against == set()


def test_what_waits_states_no_sql() -> None:
    """Outside of the machine, a file either waits (asyncio) or executes statements (SQLAlchemy)."""
    both = {
        module
        for module, path in MODULES.items()
        if room_of(module) not in {"database", "engine"}
        and any(is_within(each, "asyncio") for each in imports(path))
        and any(is_within(each, "sqlalchemy") for each in imports(path))
    }
    assert both == set()


def test_rooms_of_operators_can_be_removed() -> None:
    users = {
        (module, each)
        for module, path in MODULES.items()
        for each in arrows(path)
        if room_of(each) in REMOVABLE and room_of(module) not in {room_of(each), *ASSEMBLY}
    }
    assert users == set()


def test_packages_keep_apart() -> None:
    for path in SOURCES:
        package = module_of(path).split(".")[0]
        ours = {each.split(".")[0] for each in imports(path)} & set(ALLOWED)
        assert ours - ALLOWED[package] - {package} == set(), path


def test_no_files_import_each_other_in_a_circle() -> None:
    waiting = {module_of(path): set(arrows(path)) for path in SERVER}
    while free := [module for module, wanted in waiting.items() if not wanted & waiting.keys()]:
        for each in free:
            del waiting[each]
    assert waiting == {}


def test_rooms_are_read_in_one_sitting() -> None:
    files = [path for path in SERVER if path.name != "__init__.py"]
    rooms = Counter(path.parent.name for path in files if path.parent.name != "popserver")
    assert {room: count for room, count in rooms.items() if count > FILES_MAX_OF_SERVER.get(room, FILES_MAX)} == {}
    lengths = {module_of(path): len(path.read_text().splitlines()) for path in files}
    odd = {module for module, length in lengths.items() if not LINES_MIN <= length <= LINES_MAX}
    assert odd - LISTS == set()


def test_class_names_are_unique_in_a_package() -> None:
    """`popclient._sync` is left out: it is generated from `popclient.aio`, so both have the same names."""
    places: dict[tuple[str, str], list[str]] = {}
    for path, node in nodes(SOURCES):
        if isinstance(node, ast.ClassDef) and not is_within(module_of(path), "popclient._sync"):
            places.setdefault((module_of(path).split(".")[0], node.name), []).append(module_of(path))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_foreign_types_stop_at_their_door() -> None:
    for path, (foreign, rooms) in itertools.product(SOURCES, KEPT_IN.items()):
        if not any(is_within(module_of(path), room) for room in rooms):
            assert [each for each in imports(path) if is_within(each, foreign)] == [], path
    for path in SOURCES:
        if any(is_within(module_of(path), room) for room in WITHOUT_SQL):
            assert [each for each in imports(path) if is_within(each, "sqlalchemy")] == [], path


def test_methods_of_the_wire_are_typed() -> None:
    """No `Any` in the signature of what a client calls, and no `hasattr` in the server."""
    untyped: list[str] = []
    for path, node in nodes(SERVER):
        place = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Name) and node.id == "hasattr":
            untyped.append(place)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_of_the_wire(path):
            hints = [each for each in (node.args, node.returns) if each is not None]
            named = {each.id for hint in hints for each in ast.walk(hint) if isinstance(each, ast.Name)}
            if "Any" in named:
                untyped.append(place)
    assert untyped == []


def is_of_the_wire(path: Path) -> bool:
    """`offline` stands in for the client's transport, which takes every request."""
    module = module_of(path)
    return any(is_within(module, each) for each in WIRE) and module != "popserver.offline"


def test_only_one_module_asks_which_database_it_is() -> None:
    """`sqlalchemy.dialects`, `connection.dialect` and `is_sqlite` stay behind the seam."""
    for path in [each for each in SERVER if module_of(each) not in ASK_THE_DIALECT]:
        assert [each for each in imports(path) if is_within(each, "sqlalchemy.dialects")] == [], path
        for node in tree(path):
            if isinstance(node, ast.Attribute):
                assert node.attr not in {"dialect", "is_sqlite"}, f"{path.name}:{node.lineno} asks for {node.attr}"


def test_no_test_sleeps() -> None:
    """Tests wait for facts, and between two looks at most 200 ms."""
    for path, node in nodes(TESTS):
        if not isinstance(node, ast.Call) or not dotted(node.func).endswith("sleep") or not node.args:
            continue
        argument = node.args[0]
        if isinstance(argument, ast.Constant) and isinstance(argument.value, int | float):
            assert argument.value <= SLEEP_S_MAX, f"{path.name}:{node.lineno} sleeps {argument.value} s"


def test_no_loop_spins_beside_the_event_loop() -> None:
    """Awaiting a task that has ended, and since Python 3.12 a `gather` of such tasks, takes no turn of the event loop.

    So a loop that awaits nothing else never ends if a callback is to end it. `asyncio.wait` always takes a turn.
    """
    for path, node in nodes([*SOURCES, *TESTS, *sorted((ROOT / "benchmarks").rglob("*.py"))]):
        if isinstance(node, ast.While):
            awaited = [each.value for each in ast.walk(node) if isinstance(each, ast.Await)]
            takes_turns = not awaited or any(takes_a_turn(each, node) for each in awaited)
            assert takes_turns, f"{path.relative_to(ROOT)}:{node.lineno} awaits only what may have ended"


def takes_a_turn(awaited: ast.expr, loop: ast.While) -> bool:
    """Whether it is a call, but not of `gather` or `shield`, or a future that the loop itself has made."""
    if isinstance(awaited, ast.Call):
        return dotted(awaited.func) not in AT_ONCE
    named = [each for each in ast.walk(loop) if isinstance(each, ast.Name | ast.Attribute)]
    return dotted(awaited) in {dotted(each) for each in named if isinstance(each.ctx, ast.Store)}


def test_clients_begin_tasks_in_one_place() -> None:
    """The program's event loop may have a task factory of its own; `begin_task` says what that may do to us."""
    allowed = {"popclient._loop", "popclient._tasks"}  # the first one has its own event loop
    for path, node in nodes([path for module, path in CLIENT.items() if module not in allowed]):
        if isinstance(node, ast.Attribute):
            assert node.attr not in {"create_task", "ensure_future"}, f"{path.name}:{node.lineno}: use begin_task"


def test_only_the_clock_reads_time() -> None:
    """Of the server; `time.perf_counter` and the like measure, they do not tell the time."""
    readers = {"time.time", "time.time_ns", "time.monotonic", "datetime.now", "datetime.datetime.now"}
    found = {
        module_of(path)
        for path in SERVER
        for node in tree(path)
        if isinstance(node, ast.Call) and dotted(node.func) in readers
    }
    # The command says how long the start took; a certificate's end is compared with the system's clock.
    assert found == {"popserver.engine.clock", "popserver.serve.process", "popserver.certificates"}


def test_the_users_random_numbers_are_left_alone() -> None:
    """Who has seeded `random` counts on what comes next: a thread of ours must not draw from it."""
    for path, node in nodes(SOURCES):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "random":
            assert node.attr in {"Random", "SystemRandom"}, f"{path.name}:{node.lineno} draws random.{node.attr}"


@pytest.mark.parametrize("package", OUTSIDE)
def test_imports_of_the_client_and_the_console_run_one_way(package: str) -> None:
    files, rooms = OUTSIDE[package]
    rank = {room: index for index, room in enumerate(rooms)}
    against = {
        (module, each)
        for module, path in files.items()
        if path.name != "__init__.py"
        for each in imported_files(path, files)
        if room_of(each) and rank[room_of(each)] > rank[room_of(module)]
    }
    assert against == set()


def test_modes_of_spark_do_not_know_each_other() -> None:
    for module, path in CLIENT.items():
        if is_within(module, "popclient.spark") and path.parent.name != "spark":
            mode = ".".join(module.split(".")[:3])
            for each in imported_files(path, CLIENT):
                if is_within(each, "popclient.spark"):
                    assert is_within(each, mode) or CLIENT[each].parent.name == "spark", f"{module} imports {each}"


@pytest.mark.parametrize("package", OUTSIDE)
def test_rooms_of_the_client_and_the_console_are_read_in_one_sitting(package: str) -> None:
    files = {module: path for module, path in OUTSIDE[package][0].items() if path.name != "__init__.py"}
    rooms = Counter(path.parent.relative_to(ROOT / package).as_posix() for path in files.values())
    del rooms["."]
    assert {room: count for room, count in rooms.items() if count > FILES_MAX_OF.get(room, FILES_MAX)} == {}
    lengths = {module: len(path.read_text().splitlines()) for module, path in files.items()}
    assert {module: length for module, length in lengths.items() if not LINES_MIN <= length <= LINES_MAX} == {}


@pytest.mark.parametrize("package", OUTSIDE)
def test_no_files_of_the_client_or_the_console_import_each_other(package: str) -> None:
    """Imports inside functions and under TYPE_CHECKING count too."""
    files = OUTSIDE[package][0]
    unordered = {module: set(imported_files(path, files)) for module, path in files.items()}
    while ready := [module for module, needed in unordered.items() if not needed & unordered.keys()]:
        for module in ready:
            del unordered[module]
    assert unordered == {}


def imported_files(path: Path, files: Container[str]) -> Iterator[str]:
    """The modules among `files` that a file imports, or imports names from."""
    for node in tree(path):
        named: list[str] = []
        if isinstance(node, ast.Import):
            named = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{each.name}" for each in node.names]
            named = [name if name in files else node.module or "" for name in names]
        yield from (each for each in named if each in files)


def test_each_helper_of_the_tests_is_listed() -> None:
    support = ROOT / "tests" / "support"
    rows = re.findall(r"^\| `(\w+\.py)` \| ((?:`\w+`(?:, )?)+):", (support / "README.md").read_text(), re.MULTILINE)
    helpers = {path.name for path in support.glob("*.py") if not path.name.startswith(("test_", "__"))}
    assert sorted(name for name, _ in rows) == sorted(helpers)
    for name, offered in rows:
        text = (support / name).read_text()
        for each in re.findall(r"\w+", offered):
            assert re.search(rf"^(?:async def|def|class) {each}\b", text, re.MULTILINE), f"{name} has no {each}"
