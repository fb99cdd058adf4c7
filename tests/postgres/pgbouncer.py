"""PgBouncer in front of a Postgres: Debian's package `pgbouncer`; tests without it are skipped."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from sqlalchemy.engine import make_url

from tests.support.postgres import _as_unprivileged, _free_port, new_folder
from tests.support.waiting import soon


@contextmanager
def pgbouncer(database_url: str, mode: str) -> Iterator[str]:
    """The database's URL through a PgBouncer with this `pool_mode`."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        pytest.skip("Debian's package pgbouncer is not installed")
    url, port, folder = make_url(database_url), _free_port(), new_folder()
    (folder / "users").write_text('"postgres" ""\n')
    (folder / "ini").write_text(
        f"""[databases]
* = host={url.host} port={url.port} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
auth_type = any
unix_socket_dir =
auth_file = {folder / "users"}
pool_mode = {mode}
server_login_retry = 1
"""
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(_as_unprivileged(program, str(folder / "ini")), stdout=log, stderr=log, cwd=folder)
    through = url.set(port=port).render_as_string(hide_password=False)
    try:
        soon(lambda: _answers(through))
        yield through
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _answers(url: str) -> bool:
    try:
        with psycopg.connect(url, connect_timeout=5):
            return True
    except psycopg.OperationalError:
        return False
