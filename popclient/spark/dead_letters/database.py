"""A connection that can only read, and a plain sentence where there is none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from popclient.spark.dead_letters.adbc import errors as adbc_errors
from popclient.spark.options import shown

BUSY_TIMEOUT_S = 30
CONNECT_TIMEOUT_S = 10
_OLD_SCHEMA = re.compile("dead_letters|lineage|column")


@contextmanager
def connected(url: str) -> Iterator[Connection]:
    """Connect to a database that `options.parse` has looked at; raises `ValueError` saying what is wrong with it.

    Every statement is a transaction of its own, with the driver's cursors too.
    """
    where = make_url(url)
    engine = _sqlite(where) if where.get_backend_name() == "sqlite" else _postgres(where)
    try:
        with engine.connect() as conn:
            yield conn
    except _reasons(engine) as error:
        said = str(error.orig if isinstance(error, DBAPIError) else error).strip().splitlines()[0]
        way_out = "; make its schema with: popmq db upgrade" if _OLD_SCHEMA.search(said) else ""
        raise ValueError(f"option url={_shown(where)} cannot be read: {said}{way_out}") from error


def _reasons(engine: Engine) -> tuple[type[Exception], ...]:
    return (DBAPIError, engine.dialect.loaded_dbapi.Error, *adbc_errors())


def _sqlite(url: URL) -> Engine:
    path = Path(url.database or "")
    if not path.is_file():
        raise ValueError(f"option url={_shown(url)} cannot be read: there is no file {path}")
    return create_engine(
        URL.create("sqlite", database=f"file:{quote(str(path))}", query={"mode": "ro", "uri": "true"}),
        paramstyle="named",
        isolation_level="AUTOCOMMIT",
        poolclass=NullPool,
        connect_args={"timeout": BUSY_TIMEOUT_S},
    )


def _postgres(url: URL) -> Engine:
    # Spark reads in parallel already, and a page is too short to be worth compiling.
    settings = ("default_transaction_read_only=on", "max_parallel_workers_per_gather=0", "jit=off")
    options = " ".join(f"-c {each}" for each in (*settings, "application_name=popmq-spark"))
    try:
        return create_engine(
            url,
            poolclass=NullPool,
            isolation_level="AUTOCOMMIT",
            connect_args={"connect_timeout": CONNECT_TIMEOUT_S, "options": options},
        )
    except ModuleNotFoundError:
        raise ValueError(
            f"option url={_shown(url)} needs the driver of Postgres: pip install 'popmq[postgres]'"
        ) from None


def _shown(url: URL) -> str:
    return shown(url.render_as_string(hide_password=False))
