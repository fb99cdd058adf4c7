"""Statements that the driver executes directly: SQLAlchemy compiles the text once for each database.

An execution by SQLAlchemy costs 5 to 16 µs besides the work of the database, about as much as a plain statement: it
makes the context, the result and its columns anew each time. A call of the driver costs 1 µs. So a statement is
compiled once, and only its text and the order of its parameters are kept.

SQLAlchemy still executes statements whose values it has to convert, or whose text depends on their values (`IN`), and
all statements of a connection with event listeners.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, Protocol

from sqlalchemy import Connection, Executable, LargeBinary
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.compiler import SQLCompiler

from popserver.postgres.refusals import READ_ONLY

Names = Mapping[str, Any]


class Cursor(Protocol):
    """The result of a statement: a cursor of the driver, or a result of SQLAlchemy."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> Sequence[Any]: ...


class Statement:
    """A statement that is executed often; its parameters have names."""

    def __init__(self, statement: Executable) -> None:
        self._statement = statement
        self._compiled: dict[str, _Compiled | None] = {}  # by the name of the database; None: SQLAlchemy executes it

    def execute(self, conn: Connection, names: Names) -> Cursor:
        """Execute it with these parameters. Raises SQLAlchemy's errors, such as `IntegrityError`."""
        try:
            compiled = self._compiled[conn.dialect.name]
        except KeyError:
            compiled = self._compiled[conn.dialect.name] = _compiled(conn, self._statement, names)
        if compiled is None:
            return conn.execute(self._statement, names)
        text, order, constants = compiled
        if constants:
            names = {**constants, **names}
        return execute_text(conn, text, names if order is None else tuple([names[each] for each in order]))


class _Compiled(NamedTuple):
    """The text of a statement for one database.

    `order` has the names of its parameters; None if the driver takes them by name. `constants` are parameters that the
    statement has itself.
    """

    text: str
    order: Sequence[str] | None
    constants: Names


def execute_text(conn: Connection, text: str, parameters: tuple[Any, ...] | Names = ()) -> Cursor:
    """Execute a text of the database's own SQL. Raises SQLAlchemy's errors, such as `IntegrityError`."""
    if conn._has_events or conn.engine._has_events:
        return conn.exec_driver_sql(text, parameters)
    driver: Any = conn.connection.dbapi_connection
    try:
        cursor: Cursor = driver.execute(text, parameters)
    except driver_errors(conn) as error:
        raise_as_sqlalchemy_does(conn, driver, error)
    return cursor


def _compiled(conn: Connection, statement: Any, names: Names) -> _Compiled | None:
    """The compiled statement; None if the driver alone would execute it in another way than SQLAlchemy."""
    compiled: SQLCompiler = statement.compile(dialect=conn.dialect)
    depends_on_values = compiled.post_compile_params or compiled.literal_execute_params
    converts = compiled._bind_processors or any(_converts(conn, each.type) for each in compiled._result_columns)
    if depends_on_values or converts or statement.get_execution_options() or _takes_columns(conn, statement, names):
        return None
    constants = {name: each.value for each, name in compiled.bind_names.items() if not each.required}
    return _Compiled(str(compiled), compiled.positiontup, constants)


def _takes_columns(conn: Connection, statement: Any, names: Names) -> bool:
    """Whether the parameters of an INSERT or UPDATE decide which columns it writes."""
    by_names = statement.compile(dialect=conn.dialect, column_keys=list(names)) if statement.is_dml else None
    return by_names is not None and str(by_names) != str(statement.compile(dialect=conn.dialect))


def _converts(conn: Connection, kind: Any) -> bool:
    """Whether SQLAlchemy converts results of this type. It converts bytes only for other drivers than ours."""
    return not isinstance(kind, LargeBinary) and kind.result_processor(conn.dialect, None) is not None


def raise_as_sqlalchemy_does(conn: Connection, driver: Any, error: Exception) -> NoReturn:
    """Raise SQLAlchemy's error for an error of the driver."""
    # A session that accepts no writes any more is of no use: of a former primary, or with a disk that is full.
    is_read_only = getattr(error, "sqlstate", None) == READ_ONLY
    is_lost = is_read_only or conn.dialect.is_disconnect(error, driver, None)  # type: ignore[arg-type]
    if is_lost:
        conn.invalidate(error)
    raise DBAPIError.instance(
        None,
        None,
        error,
        driver_errors(conn),
        hide_parameters=True,
        connection_invalidated=is_lost,
        dialect=conn.dialect,
    ) from error


def driver_errors(conn: Connection) -> type[Exception]:
    """The base class of the driver's errors."""
    errors: type[Exception] = conn.dialect.loaded_dbapi.Error
    return errors
