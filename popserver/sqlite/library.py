"""SQLite's library: the choice of one, and the check of what PopMQ's SQL needs."""

from __future__ import annotations

import importlib.util
import sqlite3
from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import Any, Final, NamedTuple

from popserver.model.errors import StoreUnavailable

VERSION_MIN: Final = (3, 38)  # JSON's ->>; RETURNING since 3.35
# JSON, aggregates of bytes, and rows that are handed over as one JSON text.
_PROBE: Final = (
    "SELECT json_group_array(json_array(hex(value ->> 0))), group_concat(CAST(value AS BLOB), '')"
    " FROM json_each('[[1]]')"
)


class CompiledLimit(NamedTuple):
    """A limit that the library was compiled with, and what PopMQ needs."""

    category: str  # in the module, and of SQLite's C interface
    least: int
    why: str


LIMITS: Final = (
    CompiledLimit("SQLITE_LIMIT_VARIABLE_NUMBER", 2_000, "an INSERT of 64 rows has that many parameters"),
    CompiledLimit("SQLITE_LIMIT_LENGTH", 128 * 1024 * 1024, "the bodies of an answer are read as one value"),
    CompiledLimit("SQLITE_LIMIT_SQL_LENGTH", 250_000, "statements may be long"),
    CompiledLimit("SQLITE_LIMIT_COLUMN", 200, "a join has the columns of its tables"),
    CompiledLimit("SQLITE_LIMIT_EXPR_DEPTH", 500, "conditions of filters are nested"),
    CompiledLimit("SQLITE_LIMIT_COMPOUND_SELECT", 50, "some queries have several parts"),
    CompiledLimit("SQLITE_LIMIT_FUNCTION_ARG", 64, "a row is one array of JSON"),
)


def sqlite_module(*, own_process: bool) -> ModuleType:
    """Python's SQLite, or the newer one of `pysqlite3` in the server's own process, if it is installed.

    SQLite 3.7.0 to 3.51.2 can corrupt a WAL with two writers, so the newer one is better. But two SQLite libraries in
    one process do not see each other's locks on a file: the second one truncates the shared memory of the first, and
    the process dies with SIGBUS. In a user's process (`embedded`) other code may open the file with Python's library,
    so the broker must use the same one.
    """
    if own_process:
        try:
            from pysqlite3 import dbapi2
        except ImportError:
            return _own_copy()
        return _with_adapters(dbapi2)
    return _own_copy()


@cache
def _own_copy() -> ModuleType:
    """Python's driver once more, on the same library: other code of the process registers adapters in its `sqlite3`,
    and replaces functions there. Neither reaches this copy, and PopMQ's adapters do not reach other code."""
    spec = importlib.util.find_spec("_sqlite3")
    assert spec is not None, "Python has sqlite3"
    assert spec.loader is not None, "a module has a loader"
    driver = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(driver)
    module = ModuleType("popmq_sqlite3")
    module.__dict__.update({**vars(sqlite3.dbapi2), **vars(driver)})
    return _with_adapters(module)


def _with_adapters(module: ModuleType) -> ModuleType:
    """Register adapters that return the value unchanged.

    The driver searches an adapter for each blob and NULL. If it finds none, the search is slow: a third of an append.
    These two are written in C: `bytes` returns the same object, and the method of an empty dict returns None.
    """
    module.register_adapter(bytes, bytes)
    module.register_adapter(type(None), {}.get)
    return module


def check_library(conn: Any, module: ModuleType) -> None:
    """Raise `StoreUnavailable` if the library of a connection lacks something."""
    version = module.sqlite_version
    if tuple(map(int, version.split(".")[:2])) < VERSION_MIN:
        least = ".".join(map(str, VERSION_MIN))
        raise _unfit(version, f"PopMQ needs {least} or newer")
    options = {row[0] for row in conn.execute("PRAGMA compile_options")}
    if "THREADSAFE=0" in options:
        raise _unfit(version, "it was compiled for one thread (THREADSAFE=0)")
    try:
        conn.execute(_PROBE).fetchone()
    except module.Error as error:
        raise _unfit(version, f"it was compiled without a part of SQL ({error})") from None
    for limit, found in _limits(conn, module).items():
        if found < limit.least:
            raise _unfit(version, f"its {limit.category} is {found}, at least {limit.least} are needed: {limit.why}")


def _limits(conn: Any, module: ModuleType) -> Mapping[CompiledLimit, int]:
    """The values of `LIMITS`; empty if the driver has no function for them."""
    limit_of = getattr(conn, "getlimit", None)
    return {each: limit_of(getattr(module, each.category)) for each in LIMITS} if limit_of is not None else {}


def _unfit(version: str, why: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"SQLite {version} of this Python cannot hold PopMQ's database: {why}; use a Python with another SQLite, or"
        " pip install pysqlite3-binary for a server of its own"
    )
