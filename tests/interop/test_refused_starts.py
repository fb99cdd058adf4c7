"""Every official client that is refused tells its user why, by an error or by its log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from popclient.admin import Admin
from popclient.config import ClientConfig
from popserver import EmbeddedBroker, embedded
from tests.interop.one_start import BUILDS, Start, have, outcomes, told

ROOT = ("root", "root-has-a-secret")
ALICE = {"OFFICIAL_ACCESS_KEY": "alice", "OFFICIAL_ACCESS_SECRET": "correct-horse"}
RIGHTS = ["TOPIC flights", "GROUP counters", "GROUP missing", "GROUP CID_RMQ_SYS_*"]

MISSING = "consumer group 'missing' does not exist; create it with: popmq group create missing"
RESERVED = "consumer group name 'CID_RMQ_SYS_x' is reserved for the system; choose another"
NO_RIGHT = "user 'alice' may not SUB group 'others': no policy allows it"
BAD_FILTER = "the SQL expression is illegal at line 1, column 4"
WRONG_TYPE = "client type LITE_PUSH_CONSUMER is not supported"

# The Rust client has no push consumer, and no lite one.
KINDS = {"python": ["push", "simple"], "node": ["push", "simple"], "java": ["push", "simple"], "go": ["push", "simple"]}
KINDS["rust"] = ["simple"]
# The first of a language builds its program.
pytestmark = pytest.mark.timeout(900)


def cases() -> list[Any]:
    made = []
    for language, kinds in KINDS.items():
        found = []
        for kind in kinds:
            # Python's push consumers and all of Java's hide the words from the error they raise (docs/errors.md).
            where = "log" if language == "java" or (language, kind) == ("python", "push") else "error"
            found += [(Start(language, kind, "missing"), MISSING, where)]
            found += [(Start(language, kind, "CID_RMQ_SYS_x"), RESERVED, where)]
            found += [(Start(language, kind, "others"), NO_RIGHT, where)]
            # A push consumer's receive has no caller.
            found += [(Start(language, kind, "counters", "a >"), BAD_FILTER, "log" if kind == "push" else "error")]
        if language != "rust":
            hides = language in ("java", "python")
            found.append((Start(language, "lite", "counters"), WRONG_TYPE, "log" if hides else "error"))
        for start, words, where in found:
            case = f"{language}-{start.kind}-{start.group}{'-filter' if start.is_sql else ''}"
            made.append(pytest.param(start, words, where, id=case))
    return made


@pytest.fixture(scope="module")
def guarded() -> Iterator[EmbeddedBroker]:
    """Nothing makes itself there, and Alice may use every group but one."""
    options: dict[str, Any] = {"auth": True, "auto_create": False, "admin_access_key": ROOT[0], "admin_secret": ROOT[1]}
    with embedded(**options) as broker:
        with Admin(ClientConfig(broker.endpoint, access_key=ROOT[0], access_secret=ROOT[1])) as admin:
            admin.create_topic("flights")
            admin.create_group("counters")
            admin.create_user("alice", "correct-horse")
            for right in RIGHTS:
                admin.add_policy("alice", "ALLOW", ["PUB", "SUB"] if "TOPIC" in right else ["SUB"], *right.split())
        yield broker


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Where a client writes its log."""
    home = tmp_path / "home"
    home.mkdir()
    return home


@pytest.mark.parametrize(("start", "words", "where"), cases())
def test_a_refused_client_tells_its_user_why(
    guarded: EmbeddedBroker, home: Path, request: pytest.FixtureRequest, start: Start, words: str, where: str
) -> None:
    have(start.language, request)
    told(start, words, where, guarded.endpoint, home, ALICE)


@pytest.mark.parametrize("language", BUILDS)
def test_one_with_rights_is_served(
    guarded: EmbeddedBroker, home: Path, request: pytest.FixtureRequest, language: str
) -> None:
    have(language, request)
    start = Start(language, "producer", "counters")
    assert outcomes(start, guarded.endpoint, home, ALICE) == ["started", "served"]
