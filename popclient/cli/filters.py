"""`popmq filter …` and `popmq message find`: find messages and show them without their bodies."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from popclient.admin import Admin, FilterTrial
from popclient.cli.arguments import UsageError, client_config
from popclient.cli.output import STORED, STORED_CELLS, hint_lines, picked, properties_text, report, table_of, utc
from popclient.message import MessageView

_TOKEN = re.compile(r"'(?:[^']|'')*'|--[^\n\r]*|/\*(?s:.*?)\*/|[A-Za-z_$][\w$]*|<>|<=|>=|\S")
_NAME = re.compile(r"[A-Za-z_$][\w$]*")
_UNREAD = ("--", "/*")
_KEYWORDS = frozenset("NOT AND OR BETWEEN IN TRUE FALSE NULL IS CONTAINS STARTSWITH ENDSWITH".split())
_COMPARING = frozenset(("=", "<>", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH"))  # after others the server refuses it


def test(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        trial = admin.try_filter(arguments.expression, arguments.topic, last=arguments.last, max_messages=arguments.max)
    hints = _hints(arguments.expression)
    document = {
        "topic": arguments.topic,
        "expression": arguments.expression,
        **picked(trial, "examined matched incomparable complete"),
        "hints": hints,
        "messages": list(map(_match_document, trial.newest)),
    }
    return report(arguments, document, _lines(trial, hints))


def find(arguments: Namespace) -> int:
    if arguments.key is None and arguments.topic is None:
        raise UsageError("name a key or a topic to search: --key KEY or --topic TOPIC")
    with Admin(client_config(arguments)) as admin:
        found = admin.find_messages(
            key=arguments.key,
            topic=arguments.topic,
            tag=arguments.tag,
            where=arguments.where,
            since=arguments.since,
            until=arguments.until,
            max_messages=arguments.max,
            page=arguments.page,
            lite_topic=arguments.lite_topic,
        )
    document = {
        **picked(found, "examined matched complete next_page"),
        "messages": [{**picked(each, "topic keys"), **_match_document(each)} for each in found.messages],
    }
    lines = table_of(
        found.messages,
        f"topic {STORED} keys",
        "no message matches",
        **STORED_CELLS,
        keys=lambda message: ", ".join(message.keys),
    )
    if not found.complete:
        go_on = f"continue with --page {found.next_page}, or " if found.next_page else ""
        narrower = "narrow the search with --topic, --since or --until"
        lines += ["", f"{found.examined} messages were examined, and there are more; {go_on}{narrower}"]
    return report(arguments, document, lines)


def _match_document(each: MessageView) -> dict[str, Any]:
    return {
        **picked(each, "message_id queue_id queue_offset"),
        "stored_at": utc(each.store_timestamp),
        "tag": each.tag,
        "properties": dict(each.properties),
    }


def _hints(expression: str) -> list[str]:
    """Where NOT applies to the property alone, as SQL92 filters define it: legal, but rarely what the user wants."""
    words = [each for each in _TOKEN.findall(expression) if not each.startswith(_UNREAD)] + [""]
    return list(
        dict.fromkeys(
            _hint(name, verb.upper())
            for negation, name, verb in zip(words, words[1:], words[2:], strict=False)
            if negation.upper() == "NOT" and _NAME.fullmatch(name) and name.upper() not in _KEYWORDS
        )
    )


def _hint(name: str, verb: str) -> str:
    if verb in _COMPARING:
        return f"NOT binds more than {verb}: this is (NOT {name}) {verb} …; write NOT ({name} {verb} …)"
    return f"NOT {name} is true of every message that has {name}, with any value; compare {name} with a value"


def _lines(trial: FilterTrial, hints: Sequence[str]) -> list[str]:
    share = f" ({trial.matched / trial.examined:.1%})" if trial.examined else ""
    lines = [f"{trial.matched} of {trial.examined} messages match{share}"]
    if trial.incomparable:
        lines.append(f"{trial.incomparable} cannot be compared: a property has not the type that the expression needs")
    if not trial.complete:
        lines.append("older messages were not examined")
    lines += hint_lines(hints)
    newest = table_of(trial.newest, f"{STORED} properties", "none", **STORED_CELLS, properties=properties_text)
    return [*lines, "", *newest] if trial.newest else lines
