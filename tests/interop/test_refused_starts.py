"""Every official client that is refused tells its user why, by an error or by its log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from popclient.admin import Admin
from popclient.config import ClientConfig
from popserver import EmbeddedBroker, embedded
from tests.interop.official import PATIENCE_S, Program, Refused, Start
from tests.interop.programs import BUILDS
from tests.interop.seen import until

ROOT = ("root", "root-has-a-secret")
ALICE = ("alice", "correct-horse")
RIGHTS = ["TOPIC flights", "GROUP counters", "GROUP missing", "GROUP CID_RMQ_SYS_*"]

MISSING = "consumer group 'missing' does not exist; create it with: popmq group create missing"
RESERVED = "consumer group name 'CID_RMQ_SYS_x' is reserved for the system; choose another"
NO_RIGHT = "user 'alice' may not SUB group 'others': no policy allows it"
BAD_FILTER = "the SQL expression is illegal at line 1, column 4"
WRONG_TYPE = "takes NORMAL messages and has no lite topics"

# The Rust client has no push consumer, and no lite one.
KINDS = {"python": ["push", "simple"], "node": ["push", "simple"], "java": ["push", "simple"], "go": ["push", "simple"]}
KINDS["rust"] = ["simple"]
# The first of a language builds its program.
pytestmark = pytest.mark.timeout(900)


class Opening(NamedTuple):
    """Which client starts, and with what."""

    language: str
    kind: str  # push, simple or lite
    group: str
    expression: str = "*"  # anything but this is SQL


def cases() -> list[Any]:
    made = []
    for language, kinds in KINDS.items():
        found = []
        for kind in kinds:
            # Python's push consumers and all of Java's hide the words from the error they raise (docs/errors.md).
            where = "log" if language == "java" or (language, kind) == ("python", "push") else "error"
            found += [(Opening(language, kind, "missing"), MISSING, where)]
            found += [(Opening(language, kind, "CID_RMQ_SYS_x"), RESERVED, where)]
            found += [(Opening(language, kind, "others"), NO_RIGHT, where)]
            # A push consumer's receive has no caller.
            found += [(Opening(language, kind, "counters", "a >"), BAD_FILTER, "log" if kind == "push" else "error")]
        if language != "rust":
            hides = language in ("java", "python")
            found.append((Opening(language, "lite", "counters"), WRONG_TYPE, "log" if hides else "error"))
        for opening, words, where in found:
            case = f"{language}-{opening.kind}-{opening.group}{'-filter' if opening.expression != '*' else ''}"
            made.append(pytest.param(opening, words, where, id=case))
    return made


@pytest.fixture(scope="module")
def guarded() -> Iterator[EmbeddedBroker]:
    """Nothing makes itself there, and Alice may use every group but one."""
    options: dict[str, Any] = {"auth": True, "auto_create": False, "admin_access_key": ROOT[0], "admin_secret": ROOT[1]}
    with embedded(**options) as broker:
        with Admin(ClientConfig(broker.endpoint, access_key=ROOT[0], access_secret=ROOT[1])) as admin:
            admin.create_topic("flights")
            admin.create_group("counters")
            admin.create_user(*ALICE)
            for right in RIGHTS:
                admin.add_policy("alice", "ALLOW", ["PUB", "SUB"] if "TOPIC" in right else ["SUB"], *right.split())
        yield broker


@pytest.mark.parametrize(("opening", "words", "where"), cases())
def test_a_refused_client_tells_its_user_why(
    guarded: EmbeddedBroker, start_at: Start, opening: Opening, words: str, where: str
) -> None:
    program = start_at(opening.language, guarded.endpoint, signing=ALICE)
    if where == "error":
        with pytest.raises(Refused) as refusal:
            _start(program, opening)
        assert words in refusal.value.words
    else:
        program.open(opening.kind, opening.group, "flights", opening.expression)
        until(lambda: words in program.log)


@pytest.mark.parametrize("language", BUILDS)
def test_one_with_rights_is_served(guarded: EmbeddedBroker, start_at: Start, language: str) -> None:
    program = start_at(language, guarded.endpoint, signing=ALICE)
    assert program.producer("flights").send("flights", "body").message_id


def _start(program: Program, opening: Opening) -> None:
    """And the first call after it: a simple consumer's filter is judged there."""
    program.open(opening.kind, opening.group, "flights", opening.expression).result(PATIENCE_S)
    if opening.kind == "simple":
        program.ask("receive", client="simple", count=1, invisible_s=15).result(PATIENCE_S)
