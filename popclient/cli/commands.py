"""The client's commands: what each is called and what it takes. What each does stands in the module it names."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module
from typing import Any

from popclient.cli.arguments import duration, durations, key_value, number

QUEUES_MAX = 2**31 - 1  # of the wire; what a topic may have, the server says
ATTEMPTS_MAX = 2**31 - 1
OFFSET_MAX = 2**40
ID_MAX = 2**63 - 1
PAGE_MAX = 1_000
RECEIVE_MAX = 32
SEND_MAX = 1_000_000


def add_commands(commands: Any) -> None:
    """Add the client's commands to the `popmq` command line."""
    _add_topic(_actions(commands, "topic", "look after topics"))
    _add_group(_actions(commands, "group", "look after consumer groups"))
    _add_message(_actions(commands, "message", "send, receive and look at messages"))
    _add_dlq(_actions(commands, "dlq", "look at dead letters"))
    _add(commands, "status", "the server in numbers, and how far each group is behind", "status:show")


def _add_topic(actions: Any) -> None:
    create = _add(actions, "create", "make a topic", "topics:create")
    create.add_argument("name", metavar="NAME")
    _add_queues(create, "message queues (8)")
    _add_types(create, "a message type it accepts; may be repeated (NORMAL)")
    _add(actions, "list", "every topic", "topics:list_all")
    _add(actions, "show", "one topic and its queues", "topics:show").add_argument("name", metavar="NAME")
    update = _add(actions, "update", "add queues, change what is accepted", "topics:update")
    update.add_argument("name", metavar="NAME")
    _add_queues(update, "how many message queues to have; it only grows")
    _add_types(update, "a message type it accepts from now on; may be repeated")
    _add_delete(actions, "delete a topic with its messages", "topics:delete")


def _add_group(actions: Any) -> None:
    create = _add(actions, "create", "make a consumer group", "groups:create")
    create.add_argument("name", metavar="NAME")
    _add_policy(create, "(17)", "(10s,30s,1m … 2h)", "(errors)")
    create.add_argument(
        "--consume-from",
        choices=("earliest", "latest"),
        help="where it starts in a topic it meets for the first time (earliest)",
    )
    _add(actions, "list", "every consumer group", "groups:list_all")
    _add(actions, "show", "one group, and how far it is behind", "groups:show").add_argument("name", metavar="NAME")
    update = _add(actions, "update", "change attempts, retry intervals or history", "groups:update")
    update.add_argument("name", metavar="NAME")
    _add_policy(update, "", "", "")
    _add_delete(actions, "delete a group with its progress and its dead letters", "groups:delete")


def _add_message(actions: Any) -> None:
    send = _add(actions, "send", "send a message", "messages:send")
    send.add_argument("topic", metavar="TOPIC")
    send.add_argument("body", metavar="BODY", help="the body; - reads it from standard input")
    send.add_argument("--tag", help="one word that consumers can select by")
    send.add_argument("--key", action="append", default=[], help="a word to look it up by; may be repeated")
    send.add_argument(
        "--property", action="append", default=[], type=key_value, metavar="NAME=VALUE", help="may be repeated"
    )
    send.add_argument("--count", type=number(1, SEND_MAX), default=1, help="how many times to send it (1)")

    receive = _add(actions, "receive", "take messages for a group", "messages:receive")
    receive.add_argument("topic", metavar="TOPIC")
    receive.add_argument("--group", required=True, help="the consumer group to receive for")
    receive.add_argument("--max", type=number(1, RECEIVE_MAX), default=RECEIVE_MAX, help="at most so many (32)")
    receive.add_argument(
        "--invisible", type=duration, default="30s", metavar="DURATION", help="how long nobody else gets them (30s)"
    )
    receive.add_argument(
        "--wait", type=duration, default="15s", metavar="DURATION", help="how long to wait for the first one (15s)"
    )
    receive.add_argument("--filter", default="*", metavar="TAGS", help="tags such as 'A || B' (*)")
    receive.add_argument(
        "--ack",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="done once printed: they never come again; without it they come again when --invisible is over",
    )

    peek = _add(actions, "peek", "look at the oldest messages, holding nothing", "messages:peek")
    peek.add_argument("topic", metavar="TOPIC")
    peek.add_argument("--queue", type=number(0, QUEUES_MAX), metavar="ID", help="of one queue only")
    peek.add_argument(
        "--from", type=number(0, OFFSET_MAX), metavar="OFFSET", dest="from_offset", help="from there on; with --queue"
    )
    _add_max(peek)

    get = _add(actions, "get", "one message: its state in every group, and its history", "messages:get")
    get.add_argument("message_id", metavar="ID")
    get.add_argument("--topic", help="look there alone")


def _add_dlq(actions: Any) -> None:
    listing = _add(actions, "list", "a group's dead letters, oldest first", "dead_letters:list_some")
    listing.add_argument("group", metavar="GROUP")
    listing.add_argument("--topic", help="those that came from there")
    listing.add_argument(
        "--after", type=number(0, ID_MAX), default=0, metavar="ID", help="those after the one with this number"
    )
    _add_max(listing)
    show = _add(actions, "show", "one dead letter", "dead_letters:show")
    show.add_argument("group", metavar="GROUP")
    show.add_argument("message_id", metavar="ID", help="the message's id")


def _add_queues(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--queues", type=number(1, QUEUES_MAX), metavar="N", help=text)


def _add_types(parser: argparse.ArgumentParser, text: str) -> None:
    kinds = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY")
    parser.add_argument("--type", action="append", default=[], type=str.upper, choices=kinds, dest="types", help=text)


def _add_policy(parser: argparse.ArgumentParser, attempts: str, retry: str, history: str) -> None:
    parser.add_argument(
        "--max-attempts",
        type=number(1, ATTEMPTS_MAX),
        metavar="N",
        help=f"deliveries of a message before it is a dead letter, the first included {attempts}".rstrip(),
    )
    parser.add_argument(
        "--retry",
        type=durations,
        default=[],
        metavar="DURATIONS",
        help=f"the pauses before a push consumer's next attempts, the last one repeats {retry}".rstrip(),
    )
    parser.add_argument(
        "--history",
        choices=("none", "errors", "all"),
        help=f"which steps of its messages it remembers {history}".rstrip(),
    )


def _add_delete(actions: Any, text: str, work: str) -> None:
    delete = _add(actions, "delete", text, work)
    delete.add_argument("name", metavar="NAME")
    delete.add_argument("--yes", action="store_true", help="do not ask")


def _add_max(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--max", type=number(1, PAGE_MAX), default=32, metavar="N", help="at most so many (32)")


def _actions(commands: Any, name: str, text: str) -> Any:
    return commands.add_parser(name, help=text, description=text).add_subparsers(
        title="actions", metavar="ACTION", dest="action", required=True
    )


def _add(commands: Any, name: str, text: str, work: str) -> argparse.ArgumentParser:
    """A command, and where its work is done: `module:function`, loaded when it is run."""
    epilog = "Everywhere: --endpoint, --namespace, --json; see popmq --help."
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text, epilog=epilog)
    parser.set_defaults(run=_later(*work.split(":")))
    return parser


def _later(module: str, function: str) -> Callable[[argparse.Namespace], int]:
    def run(arguments: argparse.Namespace) -> int:
        status: int = getattr(import_module(f"popclient.cli.{module}"), function)(arguments)
        return status

    return run
