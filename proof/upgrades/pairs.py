"""Clients of each version at this server, and this client at the server of each version."""

from __future__ import annotations

from collections import Counter

from proof.upgrades.servers import serving
from proof.upgrades.upgrade import Result, client
from proof.upgrades.versions import Version, this_one

# The first schema whose versions can do it; the other calls work everywhere.
SINCE = {"pull": "0003", "pause": "0007", "lite topic": "0008"}
WIRE_WORDS = ("Traceback", "StatusCode", "grpc_message", "debug_error_string")


def old_client(version: Version, database_url: str) -> Result:
    """A client of that version at this server."""
    return _round(version, this_one(), version, database_url)


def new_client(version: Version, database_url: str) -> Result:
    """This client at the server of that version."""
    return _round(this_one(), version, version, database_url)


def _round(of_client: Version, of_server: Version, older: Version, database_url: str) -> Result:
    with serving(of_server, database_url) as server:
        told = client(of_client, "round", server.endpoint)
    violations = [
        f"a client of {of_client} at a server of {of_server}: {step}: {outcome}"
        for step, outcome in told.items()
        if not is_allowed(outcome, is_new=older.revision < SINCE.get(step, ""), is_old_client=of_client is older)
    ]
    return Result(Counter(client_server_pairs=1, calls=len(told)), violations)


def is_allowed(outcome: str, *, is_new: bool, is_old_client: bool) -> bool:
    """Whether a call may end so: OK; or, if the older side does not know it, absent or refused by a plain sentence."""
    if outcome == "ok":
        return True
    kind, _, sentence = outcome.partition(": ")
    if not is_new or not sentence:
        return False
    if kind == "absent":
        return is_old_client
    return "\n" not in sentence and len(sentence.split()) > 3 and not any(word in sentence for word in WIRE_WORDS)
