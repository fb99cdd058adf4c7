"""What reads dead letters from Postgres has the settings it needs, whatever database and role have."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
from sqlalchemy.engine import make_url

from popclient.spark.dead_letters.adbc import second_connection
from popclient.spark.dead_letters.database import SETTINGS, connected
from popserver.database import migrate
from popserver.database.database import Database
from popserver.postgres.sessions import PINNED
from tests.support.hostile_settings import HOSTILE, WAYS, hostile_database
from tests.support.postgres import PostgresServer

_OWN = {
    "default_transaction_read_only",
    "max_parallel_workers_per_gather",
    "work_mem",
    "application_name",
    "enable_hashjoin",
    "enable_mergejoin",
}
_WANTED = dict(each.replace("\\ ", " ").split("=") for each in SETTINGS)
_ASKED = "SELECT " + ", ".join(f"current_setting('{name}')" for name in _WANTED)


def test_its_values_are_those_of_the_server() -> None:
    server = {each.name: each.value for each in PINNED}
    assert {name: server[name].removesuffix(", MDY") for name in _WANTED if name not in _OWN} == {
        name: value for name, value in _WANTED.items() if name not in _OWN
    }


@pytest.mark.parametrize("way", WAYS)
def test_a_read_of_a_hostile_database(postgres: PostgresServer, way: str) -> None:
    with hostile_database(postgres, way, HOSTILE) as url:
        with closing(Database(url)) as database:
            migrate.upgrade(database)
        where = make_url(url).set(drivername="postgresql+psycopg").render_as_string(hide_password=False)
        with connected(where) as conn:
            rows = [tuple(conn.exec_driver_sql(_ASKED).one())]
            assert conn.exec_driver_sql("SELECT count(*) FROM dead_letters").scalar() == 0
            own: Any = conn.connection.driver_connection
            with second_connection(own) as beside, beside.cursor() as cursor:
                cursor.execute(_ASKED)
                rows.append(cursor.fetchone())
    for row in rows:
        found = dict(zip(_WANTED, row, strict=True))
        assert found | {"DateStyle": found["DateStyle"].partition(",")[0]} == _WANTED


def test_options_of_the_url_are_kept(postgres_url: str) -> None:
    where = make_url(postgres_url).set(drivername="postgresql+psycopg")
    asked = where.update_query_dict({"options": "-c search_path=other"}).render_as_string(hide_password=False)
    with connected(asked) as conn:
        assert conn.exec_driver_sql("SHOW search_path").scalar() == "other"
        assert conn.exec_driver_sql("SHOW jit").scalar() == "off"
