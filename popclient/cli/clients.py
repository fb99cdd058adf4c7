"""`popmq client list|stack|verify|reconnect`: who has a session with the server, and what to ask of one."""

from __future__ import annotations

from argparse import Namespace

from popclient.admin import Admin
from popclient.cli import OK, REFUSED
from popclient.cli.arguments import client_config
from popclient.cli.output import picked, say, table


def list_all(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        found = admin.list_clients(arguments.group)
    document = [picked(each, "client_id client_type group language version last_seen connected") for each in found]
    columns = ["client id", "type", "group", "library", "last seen", "session"]
    rows = [
        (
            each.client_id,
            each.client_type,
            each.group,
            f"{each.language} {each.version}".strip(),
            each.last_seen,
            "yes" if each.connected else "no",
        )
        for each in found
    ]
    return say(arguments, document, table(columns, rows, "no clients"))


def stack(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        trace = admin.print_threads(arguments.client_id)
    return say(arguments, {"client_id": arguments.client_id, "stack_trace": trace}, trace.splitlines())


def verify(arguments: Namespace) -> int:
    """Exit code 1 where the listener has failed, or the client tries no messages out."""
    with Admin(client_config(arguments)) as admin:
        trial = admin.verify_message(arguments.client_id, arguments.message_id, arguments.topic)
    document = {
        "client_id": arguments.client_id,
        "message_id": arguments.message_id,
        "outcome": trial.outcome,
        "sentence": trial.sentence,
    }
    line = f"{trial.outcome}: {trial.sentence}" if trial.sentence else trial.outcome
    say(arguments, document, [line])
    return OK if trial.succeeded else REFUSED


def reconnect(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        admin.reconnect_client(arguments.client_id)
    document = {"client_id": arguments.client_id}
    return say(arguments, document, [f"told {arguments.client_id} to open a new session"])
