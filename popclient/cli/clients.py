"""`popmq client list|stack|verify|reconnect`: the clients that are connected to a server, and requests to them."""

from __future__ import annotations

from argparse import Namespace

from popclient.admin import Admin
from popclient.cli import OK, REFUSED
from popclient.cli.arguments import client_config
from popclient.cli.output import picked, report, table_of


def list_all(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        found = admin.list_clients(arguments.group)
    document = [picked(each, "client_id client_type group language version last_seen connected") for each in found]
    lines = table_of(
        found,
        "client_id type group library last_seen session",
        "no clients",
        type="client_type",
        library=lambda client: f"{client.language} {client.version}".strip(),
        session=lambda client: "yes" if client.connected else "no",
    )
    return report(arguments, document, lines)


def stack(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        trace = admin.print_threads(arguments.client_id)
    return report(arguments, {"client_id": arguments.client_id, "stack_trace": trace}, trace.splitlines())


def verify(arguments: Namespace) -> int:
    """Exit code 1 if the listener failed, or the client does not consume messages on trial."""
    with Admin(client_config(arguments)) as admin:
        trial = admin.verify_message(arguments.client_id, arguments.message_id, arguments.topic)
    document = {**picked(arguments, "client_id message_id"), **picked(trial, "outcome sentence")}
    line = f"{trial.outcome}: {trial.sentence}" if trial.sentence else trial.outcome
    report(arguments, document, [line])
    return OK if trial.succeeded else REFUSED


def reconnect(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        admin.reconnect_client(arguments.client_id)
    line = f"asked {arguments.client_id} to open a new session"
    return report(arguments, {"client_id": arguments.client_id}, [line])
