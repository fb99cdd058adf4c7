"""A server whose SQLite file is checkpointed often: python -m proof.power_cuts.server DURABILITY COMMAND serve …

Else a short run would meet no checkpoint. With the durability `none` it syncs nothing, which a server never does: then
images must break promises, or the harness proves nothing.
"""

from __future__ import annotations

import sys
from typing import Any

from popclient.cli import main as popmq
from popserver.database import database
from popserver.sqlite.sessions import prepare_writer

CHECKPOINT_PAGES = 200  # of the WAL; a server's own number is 4,000


def main() -> int:
    durability, command, *words = sys.argv[1:]

    def prepared(dbapi: Any, given: str) -> None:
        prepare_writer(dbapi, given)
        dbapi.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        if durability == "none":
            dbapi.execute("PRAGMA synchronous = OFF")

    vars(database)["prepare_writer"] = prepared
    sys.argv = [command, *words]
    return int(popmq() or 0)


if __name__ == "__main__":
    sys.exit(main())
