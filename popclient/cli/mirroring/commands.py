"""The commands `popmq mirror` and `popmq mirrors …`, and their options."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from popclient.cli.arguments import add_command, add_yes


def add_mirror(commands: Any) -> None:
    mirror = add_command(
        commands, "mirror", "hand messages over from one server to another, until stopped", "mirroring.running:mirror"
    )
    add_sides(mirror, "the source", "the target")
    mirror.add_argument(
        "--topic", action="append", required=True, metavar="TOPIC", help="a topic to hand over; may be repeated"
    )
    groups = mirror.add_mutually_exclusive_group()
    groups.add_argument(
        "--group",
        action="append",
        default=[],
        metavar="GROUP",
        help="a consumer group: what it has not done is handed over; may be repeated (the whole topic, for all groups)",
    )
    groups.add_argument("--all-groups", action="store_true", help="each group that the source has for the topics")
    mirror.add_argument(
        "--state",
        type=Path,
        metavar="FILE",
        help="keep position and counts in this file (at the PopMQ server, the target's if both are)",
    )
    mirror.add_argument(
        "--reader",
        default="popmq-mirror",
        metavar="NAME",
        help="begins the names of groups by which it reads for itself (popmq-mirror)",
    )
    mirror.add_argument("--until-empty", action="store_true", help="exit when nothing is left at the source")
    mirror.add_argument(
        "--dry-run",
        action="store_true",
        help="show what it would hand over and make, and what it cannot; change nothing",
    )


def add_sides(command: ArgumentParser, source: str, target: str) -> None:
    """source, target: what the sides are called in the help."""
    for name, what in (("from", f"of {source}"), ("to", f"of {target}")):
        command.add_argument(
            f"--{name}", dest=f"{name}_endpoint", required=True, metavar="ENDPOINT", help=f"HOST:PORT {what}"
        )
        command.add_argument(
            f"--{name}-name-server",
            default="",
            metavar="HOST:PORT",
            help=f"the name server {what}, if that is RocketMQ; without it, topics and groups must exist there",
        )
        command.add_argument(
            f"--{name}-admin",
            default="",
            metavar="HOST:PORT",
            help=f"the port {what} for the administration, if that is PopMQ and has one of its own",
        )
        command.add_argument(
            f"--{name}-access-key",
            default="",
            metavar="KEY",
            help=f"the user {what}; the secret is read from POPMQ_{name.upper()}_ACCESS_SECRET",
        )


def add_mirrors(actions: Any) -> None:
    add_command(actions, "list", "list the mirrors that the server has recorded", "mirroring.listing:list_all")
    forget = add_command(
        actions, "forget", "remove the record and the position of a mirror that has ended", "mirroring.listing:forget"
    )
    forget.add_argument("mirror_id", metavar="MIRROR")
    add_yes(forget)
