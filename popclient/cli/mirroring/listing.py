"""`popmq mirrors list|forget`: the mirrors that a server has recorded."""

from __future__ import annotations

from argparse import Namespace
from datetime import timedelta
from typing import Any

from popclient.admin import Admin, MirrorFacts
from popclient.cli import REFUSED
from popclient.cli.arguments import client_config, confirm, counted
from popclient.cli.output import duration_text, picked, report, table_of

_SECOND = timedelta(seconds=1)
_ENDED = {"STOPPED", "DONE"}


def list_all(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        found = admin.list_mirrors()
    lines = table_of(
        found,
        "mirror from to topic group state handed lag last_report",
        "no mirrors",
        mirror="mirror_id",
        **{"from": "source", "to": "target"},
        group=lambda each: each.group or "",
        state=_state,
        lag=lambda each: "unknown" if each.lag is None else each.lag,
        last_report=lambda each: f"{duration_text(each.report_age // _SECOND * _SECOND)} ago",
    )
    lines += [f"{each.mirror_id}: {each.sentence}" for each in found if each.sentence]
    return report(arguments, list(map(_document, found)), lines)


def forget(arguments: Namespace) -> int:
    name = arguments.mirror_id
    with Admin(client_config(arguments)) as admin:
        found = next((each for each in admin.list_mirrors() if each.mirror_id == name), None)
        about = "" if found is None else f", which has handed over {counted(found.handed, 'message')}"
        if not confirm(arguments, f"removes the record of mirror {name}{about}; a mirror of that name begins anew"):
            return REFUSED
        admin.forget_mirror(name)
    return report(arguments, {"mirror_id": name}, [f"forgot mirror {name}"])


def _state(mirror: MirrorFacts) -> str:
    is_gone = mirror.state not in _ENDED and not mirror.has_lease
    return f"{mirror.state}, but gone" if is_gone else mirror.state


def _document(mirror: MirrorFacts) -> dict[str, Any]:
    return picked(
        mirror,
        "mirror_id source target namespace topic group owner host state sentence handed repeated dead_letters scheduled"
        " bytes lag lease_until has_lease started_at updated_at",
    )
