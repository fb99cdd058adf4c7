"""A server that kills or stops itself: python -m proof.upgrades.stepping kill|stop K FAULT serve …

It happens before the K-th statement of the migration; K beyond the last one means: right after the COMMIT. FAULT is
`none`, or one of `proof.upgrades.planted`.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from sqlalchemy import Engine, event

from popclient import cli
from popserver.database import migrate
from popserver.database.database import Database

SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def step(what: str, at: int) -> None:
    """Count the statements of `migrate.upgrade` from now on, and send the signal to ourselves before number `at`."""
    count = 0
    is_migrating = False

    def before(*_given: Any) -> None:
        nonlocal count
        count += is_migrating
        if is_migrating and count == at:
            os.kill(os.getpid(), SIGNALS[what])

    upgrade = migrate.upgrade

    def upgrading(database: Database, to: str = migrate.HEAD) -> str | None:
        nonlocal is_migrating
        is_migrating = True
        try:
            found = upgrade(database, to)
        finally:
            is_migrating = False
        if count < at:
            os.kill(os.getpid(), SIGNALS[what])
        return found

    event.listen(Engine, "before_cursor_execute", before)
    migrate.upgrade = upgrading


def main() -> None:
    what, at, fault, *words = sys.argv[1:]
    if fault != "none":
        from proof.upgrades.planted import FAULTS

        FAULTS[fault]()
    step(what, int(at))
    sys.argv = ["popmq", *words]
    sys.exit(cli.main())


if __name__ == "__main__":
    main()
