"""The clients of this process that nobody has closed.

One that outlives its server goes on knocking at its port, second by second, and some other test's server has that port
by then: it gets an answer, and takes messages that are not its own.
"""

from __future__ import annotations

from typing import Any

import pytest

from popclient._session.session import Session


class OpenClients:
    """Whose session was started and not closed, by client id."""

    def __init__(self) -> None:
        self._open: dict[str, str] = {}
        self._test = ""

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        start, close = Session.start, Session.close

        async def starting(session: Session) -> None:
            if not session.closing:
                self._open.setdefault(session.client_id, self._test)
            await start(session)

        async def closing(session: Session, *given: Any, **named: Any) -> None:
            self._open.pop(session.client_id, None)
            await close(session, *given, **named)

        patch.setattr(Session, "start", starting)
        patch.setattr(Session, "close", closing)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._test = nodeid

    def forgotten(self) -> list[str]:
        """The tests that have opened them. Each is told once."""
        tests = sorted(set(self._open.values()))
        self._open.clear()
        return tests
