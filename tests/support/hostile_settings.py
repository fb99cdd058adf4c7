"""Databases of Postgres whose settings, or those of the role that connects, are the worst for PopMQ."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import psycopg
from sqlalchemy.engine import make_url

from tests.support.postgres import PostgresServer, fresh_database

_NUMBERS = itertools.count()
WAYS = ("database", "role")  # where a setting is: ALTER DATABASE, or ALTER ROLE

# The worst value of each setting. Time-outs are longer than a busy machine needs for a connection's first statement.
HOSTILE: Mapping[str, str] = {
    "default_transaction_isolation": "repeatable read",
    "default_transaction_deferrable": "on",
    "row_security": "on",
    "client_encoding": "LATIN1",
    "standard_conforming_strings": "off",
    "backslash_quote": "on",
    "bytea_output": "escape",
    "array_nulls": "off",
    "transform_null_equals": "on",
    "DateStyle": "German, DMY",
    "IntervalStyle": "iso_8601",
    "TimeZone": "Pacific/Chatham",
    "extra_float_digits": "-15",
    "quote_all_identifiers": "on",
    "statement_timeout": "250ms",
    "lock_timeout": "1ms",
    "idle_in_transaction_session_timeout": "1ms",
    "idle_session_timeout": "1s",
    "transaction_timeout": "250ms",
    "client_min_messages": "error",
    "plan_cache_mode": "force_custom_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "on",
    "enable_indexscan": "off",
    "enable_indexonlyscan": "off",
    "enable_tidscan": "off",
    "enable_nestloop": "off",
    "enable_sort": "off",
    "enable_incremental_sort": "off",
    "enable_hashagg": "off",
    "enable_material": "off",
    "enable_memoize": "off",
    "from_collapse_limit": "1",
    "join_collapse_limit": "1",
    "geqo_threshold": "2",
    "force_parallel_mode": "regress",
    "debug_parallel_query": "regress",
    "default_table_access_method": "hostile_heap",
    "check_function_bodies": "off",
    # Those that may have any value.
    "synchronous_commit": "off",
    "session_replication_role": "replica",
    "role": "hostile_owner",
    "default_tablespace": "hostile_space",
    "temp_tablespaces": "hostile_space",
    "lc_messages": "C.utf8",
    "work_mem": "64kB",
    "random_page_cost": "1000000",
    "effective_cache_size": "8kB",
    "constraint_exclusion": "on",
    "max_parallel_workers_per_gather": "8",
    "default_toast_compression": "lz4",
    "xmloption": "document",
    "application_name": "hostile",
}
# Options of a connection of the test's own to such a database.
UNHARMED = (
    "-c default_transaction_read_only=off -c statement_timeout=0"
    " -c lock_timeout=0 -c idle_session_timeout=0 -c idle_in_transaction_session_timeout=0 -c client_encoding=UTF8"
    " -c standard_conforming_strings=on -c search_path=public -c row_security=on -c extra_float_digits=1"
)
# `public` is there, and has no rights for others; tables of the same names come first, or are temporary.
SEARCH_PATH = "hostile_first, hostile_absent, public, pg_catalog"
_PREPARED = """
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'hostile_owner') THEN CREATE ROLE hostile_owner; END IF;
END $$;
CREATE ACCESS METHOD hostile_heap TYPE TABLE HANDLER heap_tableam_handler;
CREATE SCHEMA hostile_first;
CREATE TABLE hostile_first.message (n integer);
CREATE TABLE hostile_first.alembic_version (version_num text);
INSERT INTO hostile_first.alembic_version VALUES ('9999');
CREATE FUNCTION hostile_first.set_config(text, text, boolean) RETURNS text LANGUAGE sql AS 'SELECT ''hostile''';
CREATE FUNCTION hostile_first.current_setting(text, boolean) RETURNS text LANGUAGE sql AS 'SELECT NULL';
"""


@contextmanager
def hostile_database(postgres: PostgresServer, way: str, settings: Mapping[str, str]) -> Iterator[str]:
    """The URL of a new database, for a role that owns it and is no superuser. Either has these settings; those that
    this version of Postgres does not have are left out."""
    role = f"hostile_{os.getpid()}_{next(_NUMBERS)}"
    with fresh_database(postgres) as url:
        name = make_url(url).database
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute(_PREPARED.encode())
            if conn.execute("SELECT FROM pg_tablespace WHERE spcname = 'hostile_space'").fetchone() is None:
                conn.execute("SET allow_in_place_tablespaces = on")
                conn.execute("CREATE TABLESPACE hostile_space LOCATION ''")
            conn.execute(f"CREATE ROLE {role} LOGIN IN ROLE hostile_owner".encode())
            for each in ("hostile_owner", role):
                conn.execute(f"GRANT ALL ON DATABASE {name} TO {each}".encode())
                conn.execute(f"GRANT ALL ON SCHEMA public TO {each}".encode())
                conn.execute(f"GRANT USAGE ON SCHEMA hostile_first TO {each}".encode())
                conn.execute(f"GRANT ALL ON TABLESPACE hostile_space TO {each}".encode())
        own = make_url(url).set(username=role).render_as_string(hide_password=False)
        alter(own, way, settings)
        try:
            yield own
        finally:
            with psycopg.connect(url, autocommit=True, options=UNHARMED) as conn:
                conn.execute(f"DROP OWNED BY {role}, hostile_owner CASCADE".encode())
                conn.execute(f"DROP ROLE {role}".encode())


def alter(url: str, way: str, settings: Mapping[str, str]) -> None:
    """Set these for the URL's database or role, as the superuser of the test's Postgres."""
    target = make_url(url)
    with psycopg.connect(
        target.set(username="postgres").render_as_string(hide_password=False), autocommit=True, options=UNHARMED
    ) as conn:
        known = {row[0].lower() for row in conn.execute("SELECT name FROM pg_settings")} | {"role"}
        whose = f"DATABASE {target.database}" if way == "database" else f"ROLE {target.username}"
        for setting, value in settings.items():
            if setting.lower() in known and not (setting == "role" and way == "database"):
                conn.execute(f"ALTER {whose} SET {setting} = {_value(setting, value)}".encode())


def _value(setting: str, value: str) -> str:
    return value if setting in {"search_path", "temp_tablespaces"} else f"'{value}'"
