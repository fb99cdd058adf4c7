"""The settings of a Postgres session that PopMQ's SQL needs.

Every setting has a default of the server, which ALTER DATABASE, ALTER ROLE and a URL's `options=` change. PopMQ sets
most of them on each connection, in the statement that asks a host for its state, so they cost no round trip. Some
settings PopMQ cannot or must not change: if one has a wrong value, it refuses to start, and names the setting. The rest
may have any value. docs/postgres.md has all of them for users, and a test gives each setting a bad value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

LOCK_TIMEOUT_S: Final = 5
VERSION_MIN: Final = 13


class Pinned(NamedTuple):
    """A setting that PopMQ sets in each session."""

    name: str
    value: str
    why: str
    writer: str = ""  # the value in the writer's session, if it differs


class Required(NamedTuple):
    """A setting that must have this value."""

    name: str
    value: str
    why: str
    way_out: str


_PLANS: Final = "a plan that avoids an index reads whole tables for each message"
_BY_INDEX: Final = "the writer finds few rows by an index, also in a table that was small when its plan was made"
_ENDS: Final = "ends sessions that PopMQ keeps, or work that it bounds itself"
_READS: Final = "how values are written and read"

PINNED: Final[Sequence[Pinned]] = (
    # Which rows a statement sees.
    Pinned(
        "default_transaction_isolation",
        "read committed",
        "after it has waited for a lock, the next statement must see what the other transaction has committed",
    ),
    Pinned("default_transaction_deferrable", "off", "a deferrable transaction waits before it begins"),
    Pinned("row_security", "off", "a policy would hide rows silently; so a hidden row is an error"),
    # How values are written and read.
    Pinned("client_encoding", "UTF8", "texts are Unicode"),
    Pinned("standard_conforming_strings", "on", "a backslash in a text is a backslash"),
    Pinned("backslash_quote", "safe_encoding", _READS),
    Pinned("bytea_output", "hex", _READS),
    Pinned("array_nulls", "on", _READS),
    Pinned("transform_null_equals", "off", "NULL equals nothing"),
    Pinned("DateStyle", "ISO, MDY", _READS),
    Pinned("IntervalStyle", "postgres", _READS),
    Pinned("TimeZone", "UTC", _READS),
    Pinned("extra_float_digits", "1", _READS),
    Pinned("quote_all_identifiers", "off", _READS),
    # How long a session and its work last.
    Pinned("statement_timeout", "0", _ENDS),
    Pinned("lock_timeout", f"{LOCK_TIMEOUT_S}s", "how long a statement waits for a lock, and then fails"),
    Pinned("idle_in_transaction_session_timeout", "0", _ENDS),
    Pinned("idle_session_timeout", "0", _ENDS),  # since 14
    Pinned("transaction_timeout", "0", _ENDS),  # since 17
    Pinned("client_min_messages", "notice", "a COMMIT that no standby has confirmed is told by a warning"),
    # How a statement is planned.
    Pinned("plan_cache_mode", "auto", "planning a statement anew each time costs more than the statement"),
    Pinned("enable_seqscan", "on", _BY_INDEX, writer="off"),
    Pinned("enable_bitmapscan", "on", _BY_INDEX, writer="off"),
    Pinned("enable_hashjoin", "on", _BY_INDEX, writer="off"),
    Pinned("enable_mergejoin", "on", _BY_INDEX, writer="off"),
    Pinned("jit", "off", "compiling a short statement takes longer than the statement"),
    Pinned("enable_indexscan", "on", _PLANS),
    Pinned("enable_indexonlyscan", "on", _PLANS),
    Pinned("enable_tidscan", "on", _PLANS),
    Pinned("enable_nestloop", "on", _PLANS),
    Pinned("enable_sort", "on", _PLANS),
    Pinned("enable_incremental_sort", "on", _PLANS),
    Pinned("enable_hashagg", "on", _PLANS),
    Pinned("enable_material", "on", _PLANS),
    Pinned("enable_memoize", "on", _PLANS),  # since 14
    Pinned("from_collapse_limit", "8", _PLANS),
    Pinned("join_collapse_limit", "8", _PLANS),
    Pinned("geqo_threshold", "12", "plans by chance differ from one day to the next"),
    Pinned("force_parallel_mode", "off", "workers for a short statement cost more than it"),  # until 15
    Pinned("debug_parallel_query", "off", "workers for a short statement cost more than it"),  # since 16
    # How tables are made.
    Pinned("default_table_access_method", "heap", "the newest version of a row is found by the pages of a heap"),
    Pinned("check_function_bodies", "on", "a mistake in the SQL functions is told when they are made"),
)

REQUIRED: Final[Sequence[Required]] = (
    Required(
        "transaction_read_only",
        "off",
        "its sessions are read-only, and PopMQ writes; a provider sets that when a disk is full",
        "see who has set default_transaction_read_only and why, undo it (ALTER DATABASE … RESET, ALTER ROLE … RESET),"
        " and repeat",
    ),
    Required(
        "server_encoding",
        "UTF8",
        "a message's texts may have any character",
        "create another database: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0",
    ),
)

# Settings of a transaction that finds few rows by an index: the writer's, and some of readers.
BY_INDEX: Final = {each.name: each.writer for each in PINNED if each.writer}
# The schema with PopMQ's tables, the first in the search path; else the one where they are made. Temporary tables of
# the same name come last: a session of a pooler may have them.
_SEARCH_PATH: Final = """pg_catalog.set_config('search_path', COALESCE(
    (SELECT pg_catalog.format('%I, pg_temp', s.name)
     FROM pg_catalog.unnest(pg_catalog.current_schemas(false)) WITH ORDINALITY AS s(name, number)
     WHERE pg_catalog.to_regclass(pg_catalog.format('%I.message_group_progress', s.name)) IS NOT NULL
     ORDER BY s.number LIMIT 1),
    CASE WHEN pg_catalog.current_schema() IS NOT NULL THEN
        pg_catalog.format('%I, pg_temp', pg_catalog.current_schema()) END,
    pg_catalog.current_setting('search_path')), false)"""


def _set(name: str, value: str) -> str:
    """SQL that sets a setting, if this version of Postgres has it."""
    known = f"pg_catalog.current_setting('{name}', true) IS NOT NULL"
    return f"CASE WHEN {known} THEN pg_catalog.set_config('{name}', '{value}', false) END"


# All names are qualified, because the session's own search path may have others first.
BEGIN: Final = "SELECT " + ", ".join(
    (
        "pg_catalog.pg_is_in_recovery()",
        "pg_catalog.current_setting('server_version_num')",
        *(f"pg_catalog.current_setting('{each.name}')" for each in REQUIRED),
        *(_set(each.name, each.value) for each in PINNED),
        _SEARCH_PATH,
    )
)


class SessionFacts(NamedTuple):
    """The answer to BEGIN."""

    is_standby: bool
    version: int  # of Postgres, such as 15
    required: Sequence[str]

    @classmethod
    def of(cls, row: Sequence[Any] | None) -> SessionFacts:
        assert row is not None, "the query has one row"
        return cls(row[0], int(row[1]) // 10_000, row[2 : 2 + len(REQUIRED)])

    @property
    def fault(self) -> str | None:
        """Why a server cannot use such sessions, and what to do; None if it can."""
        if self.version < VERSION_MIN:
            return f"is Postgres {self.version}, and PopMQ needs {VERSION_MIN} or newer; upgrade it"
        for each, value in zip(REQUIRED, self.required, strict=True):
            if value != each.value:
                return f"has {each.name} = {value}, not {each.value}: {each.why}; {each.way_out}"
        return None


def settings_text(settings: dict[str, str], *, local: bool = False) -> str:
    """Statements that set these, for one round trip; `local`: until the end of the transaction."""
    verb = "SET LOCAL" if local else "SET"
    return "; ".join(f"{verb} {name} = '{value}'" for name, value in settings.items())
