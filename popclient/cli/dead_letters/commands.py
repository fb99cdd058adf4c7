"""The commands `popmq dlq …`, and the options of a selection that most of them have."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

from popclient.cli.arguments import TIMES, add_command, add_max, add_yes, classifier, moment, number, numbers, rate

ID_MAX: Final = 2**63 - 1
SHOWN_MAX: Final = 1_000_000
FUNCTION: Final = "MODULE:FUNCTION"


def add_dlq(actions: Any) -> None:
    listing = add_command(
        actions, "list", "list the dead letters of a group, oldest first", "dead_letters.listing:list_some", alias="ls"
    )
    _add_selection(listing)
    listing.add_argument(
        "--after", type=number(0, ID_MAX), default=0, metavar="ID", help="only those with a greater number"
    )
    add_max(listing, SHOWN_MAX)

    show = add_command(actions, "show", "show a dead letter", "dead_letters.listing:show")
    show.add_argument("message_id", metavar="ID", help="the message's id, or the dead letter's number")
    show.add_argument("--group", required=True, help="the consumer group of the dead letter")

    classify = add_command(actions, "classify", "count dead letters by class", "dead_letters.listing:classify")
    _add_selection(classify)
    by = classify.add_mutually_exclusive_group()
    by.add_argument(
        "--by",
        type=classifier,
        default="reason",
        metavar="WHAT",
        help="reason, tag, topic, attempt, message_group or property:NAME (reason)",
    )
    by.add_argument(
        "--with", dest="function", metavar=FUNCTION, help="your function: takes a DeadLetter, returns its class"
    )

    _add_redrive(actions)

    export = add_command(actions, "export", "export dead letters to a file", "dead_letters.export:export")
    _add_selection(export)
    export.add_argument("--to", required=True, type=Path, metavar="FILE", help="FILE.parquet or FILE.jsonl")
    export.add_argument("--force", action="store_true", help="overwrite an existing file")

    purge = add_command(actions, "purge", "delete dead letters permanently", "dead_letters.listing:purge")
    _add_selection(purge)
    add_yes(purge)


def _add_redrive(actions: Any) -> None:
    redrive = add_command(
        actions, "redrive", "send dead letters back to the group, by a plan", "dead_letters.redrive:redrive"
    )
    _add_selection(redrive, needed=False)
    redrive.add_argument("--dry-run", action="store_true", help="make a plan and show it, but send nothing")
    redrive.add_argument("--plan", metavar="PLAN", help="run or continue this plan (a new plan)")
    redrive.add_argument(
        "--rate", type=rate, metavar="RATE", help="send at most this many, such as 100/s, 30/m or 500/h"
    )
    redrive.add_argument("--reason", default="", metavar="TEXT", help="the reason, which the plan records")
    redrive.add_argument(
        "--to", metavar="TOPIC", help="send to this topic, for all its groups (only to the group of the dead letters)"
    )
    redrive.add_argument(
        "--repair",
        metavar=FUNCTION,
        help="your function: takes a DeadLetter, returns a Repair, or None to keep it as a dead letter",
    )
    add_max(redrive, SHOWN_MAX, text="with --dry-run, show at most this many")

    plans = add_command(actions, "plans", "list the plans, newest first", "dead_letters.redrive:list_plans")
    plans.add_argument("--group", help="only of this group")
    plan = add_command(
        actions, "plan", "show a plan, and the state of each of its messages", "dead_letters.redrive:show_plan"
    )
    plan.add_argument("plan", metavar="PLAN")
    add_max(plan, SHOWN_MAX, 100)
    cancel = add_command(
        actions,
        "cancel",
        "stop a plan; messages that were not sent yet stay dead letters",
        "dead_letters.redrive:cancel",
    )
    cancel.add_argument("plan", metavar="PLAN")


def _add_selection(parser: argparse.ArgumentParser, *, needed: bool = True) -> None:
    parser.add_argument("--group", required=needed, help="the consumer group of the dead letters")
    parser.add_argument("--topic", help="only those of this topic")
    parser.add_argument(
        "--from",
        dest="dead_from",
        type=moment,
        metavar="WHEN",
        help=f"only those that died at this time or later: {TIMES}",
    )
    parser.add_argument(
        "--until", dest="dead_until", type=moment, metavar="WHEN", help="only those that died before this time"
    )
    parser.add_argument(
        "--where",
        default="",
        metavar="SQL",
        help="a SQL filter on properties, TAGS, REASON, ATTEMPT, TOPIC, MESSAGE_ID and MESSAGE_GROUP",
    )
    parser.add_argument(
        "--id",
        dest="ids",
        action="extend",
        type=numbers(1, ID_MAX),
        default=[],
        metavar="ID",
        help="only the dead letter with this number; may be repeated, or 4,7,9",
    )
    if needed:
        parser.add_argument("--redriven-too", action="store_true", help="also dead letters that were redriven already")
