"""`popmq why`"""

from __future__ import annotations

from argparse import Namespace

from popclient.admin import Admin
from popclient.cli.arguments import client_config
from popclient.cli.history import history_document, history_lines
from popclient.cli.ids import in_any_case
from popclient.cli.output import fields, say


def explain(arguments: Namespace) -> int:
    """One sentence, then what it rests on."""
    with Admin(client_config(arguments)) as admin:
        found = in_any_case(lambda each: admin.why(each, arguments.group, arguments.topic), arguments.message_id)
    document = {
        "sentence": found.sentence,
        "evidence": found.evidence,
        "history": history_document(found.history),
    }
    lines = [found.sentence, "", *fields(found.evidence.items()), "", *history_lines(found.history)]
    return say(arguments, document, lines)
