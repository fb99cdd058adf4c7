"""The commands `popmq move …`, and their options."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from popclient.cli.arguments import add_command, add_yes
from popclient.cli.mirroring.commands import add_sides


def add_move(actions: Any) -> None:
    plan = add_command(actions, "plan", "look at both sides, and write the file of a move", "moving.planning:plan")
    add_sides(plan, "the old side", "the new side")
    plan.add_argument(
        "--topic", action="append", required=True, metavar="TOPIC", help="a topic to move; may be repeated"
    )
    groups = plan.add_mutually_exclusive_group(required=True)
    groups.add_argument(
        "--group", action="append", default=[], metavar="GROUP", help="a consumer group to move; may be repeated"
    )
    groups.add_argument("--all-groups", action="store_true", help="each group that the old side has for the topics")
    plan.add_argument(
        "--without-order",
        action="append",
        default=[],
        metavar="TOPIC",
        help="one of the topics, which accepts message groups but has none; may be repeated",
    )
    plan.add_argument(
        "--reader",
        default="popmq-mirror",
        metavar="NAME",
        help="begins the names of groups by which the move reads for itself (popmq-mirror)",
    )
    _add_file(plan)
    for name, what, work in (
        (
            "start",
            "move, until stopped; producers of topics with message groups change sides now",
            "moving.running:start",
        ),
        ("finish", "close the old side, move what is left, compare both sides, and end", "moving.running:finish"),
        ("back", "move back to the old side, until stopped", "moving.running:back"),
    ):
        command = add_command(actions, name, what, work)
        add_yes(command)
        _add_file(command)
    _add_file(add_command(actions, "status", "show how far the move is, and what is next", "moving.planning:status"))


def _add_file(command: ArgumentParser) -> None:
    command.add_argument(
        "--file",
        type=Path,
        default=Path("popmq-move.json"),
        metavar="FILE",
        help="the file of the move (popmq-move.json)",
    )
