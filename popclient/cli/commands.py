"""The client's commands: what each is called and what it takes. What each does stands in the module it names."""

from __future__ import annotations

import argparse
from typing import Any

from popclient.cli.arguments import actions as actions_named
from popclient.cli.arguments import (
    add_actions,
    add_command,
    duration,
    key_value,
    number,
    place,
    resource,
    retry_intervals,
    secret_source,
)
from popclient.cli.dlq_commands import add_dlq

QUEUES_MAX = 2**31 - 1  # of the wire; what a topic may have, the server says
ATTEMPTS_MAX = 2**31 - 1
OFFSET_MAX = 2**40
ID_MAX = 2**63 - 1
PAGE_MAX = 1_000
RECEIVE_MAX = 32
SEND_MAX = 1_000_000
SHOWN_MAX = 100


def add_commands(commands: Any) -> None:
    """Add the client's commands to the `popmq` command line."""
    _add_topic(add_actions(commands, "topic", "look after topics"))
    _add_group(add_actions(commands, "group", "look after consumer groups"))
    _add_client(add_actions(commands, "client", "who is connected, and what to ask of one"))
    _add_message(add_actions(commands, "message", "send, receive and look at messages"))
    _add_filter(add_actions(commands, "filter", "try SQL filters"))
    add_dlq(add_actions(commands, "dlq", "look at dead letters, send them back, keep them elsewhere, remove them"))
    _add_acl(add_actions(commands, "acl", "look after users and what they may do"))
    _add_relay(commands)
    _add_why(commands)
    clock = add_actions(commands, "clock", "the clock that the server goes by")
    add_command(clock, "confirm", "it is right: remove what is old by it", "groups:confirm_clock")
    add_command(commands, "status", "the server in numbers, and how far each group is behind", "groups:show_server")


def _add_topic(actions: Any) -> None:
    create = add_command(actions, "create", "make a topic", "topics:create")
    create.add_argument("name", metavar="NAME")
    _add_queues(create, "message queues (8)")
    _add_types(create, "a message type it accepts; may be repeated (NORMAL)")
    add_command(actions, "list", "every topic", "topics:list_all")
    add_command(actions, "show", "one topic and its queues", "topics:show").add_argument("name", metavar="NAME")
    update = add_command(actions, "update", "add queues, change what is accepted", "topics:update")
    update.add_argument("name", metavar="NAME")
    _add_queues(update, "how many message queues to have; it only grows")
    _add_types(update, "a message type it accepts from now on; may be repeated")
    _add_delete(actions, "delete a topic with its messages", "topics:delete")


def _add_group(actions: Any) -> None:
    create = add_command(actions, "create", "make a consumer group", "groups:create")
    create.add_argument("name", metavar="NAME")
    _add_policy(create, "(17)", "(10s,30s,1m … 2h)", "(3s)", "(errors)")
    create.add_argument(
        "--consume-from",
        choices=("earliest", "latest"),
        help="where it starts in a topic it meets for the first time (earliest)",
    )
    add_command(actions, "list", "every consumer group", "groups:list_all")
    add_command(actions, "show", "one group, and how far it is behind", "groups:show").add_argument(
        "name", metavar="NAME"
    )
    update = add_command(actions, "update", "change attempts, retry intervals or history", "groups:update")
    update.add_argument("name", metavar="NAME")
    _add_policy(update, "", "", "", "")
    _add_delete(actions, "delete a group with its progress and its dead letters", "groups:delete")
    _add_progress(actions)


def _add_client(actions: Any) -> None:
    listed = add_command(actions, "list", "every client that is there; each server knows its own", "clients:list_all")
    listed.add_argument("--group", help="the consumers of this group alone")
    stack = add_command(actions, "stack", "what a client's threads are doing now", "clients:stack")
    verify = add_command(
        actions, "verify", "have a push consumer's listener consume a message, on trial", "clients:verify"
    )
    reconnect = add_command(actions, "reconnect", "have a client open its session anew", "clients:reconnect")
    for each in (stack, verify, reconnect):
        each.add_argument("client_id", metavar="CLIENT_ID")
    verify.add_argument("message_id", metavar="ID")
    verify.add_argument("--topic", help="look for the message there alone")


def _add_progress(actions: Any) -> None:
    lag = add_command(actions, "lag", "how far a group is behind, queue by queue", "progress:lag")
    lag.add_argument("group", metavar="GROUP")
    lag.add_argument("--topic", help="in that one alone")

    reset = add_command(actions, "reset", "move a group to another offset; see --dry-run", "progress:reset")
    reset.add_argument("group", metavar="GROUP")
    reset.add_argument("topic", metavar="TOPIC")
    where = reset.add_mutually_exclusive_group(required=True)
    where.add_argument("--to", type=place, metavar="PLACE", help="beginning, end, or a moment such as 2026-11-20T10:00")
    where.add_argument("--offset", type=number(0, OFFSET_MAX), metavar="N", help="an offset; with --queue")
    reset.add_argument("--queue", type=number(0, QUEUES_MAX), metavar="ID", help="in one queue only (all)")
    reset.add_argument("--dry-run", action="store_true", help="only show what would be")

    skip = add_command(actions, "skip", "mark one message as consumed without delivering it", "progress:skip")
    skip.add_argument("group", metavar="GROUP")
    skip.add_argument("message_id", metavar="ID")
    skip.add_argument("--topic", help="look there alone")

    clone = add_command(actions, "clone", "start a group at the progress of another one", "progress:clone")
    clone.add_argument("source", metavar="SOURCE")
    clone.add_argument("group", metavar="GROUP")
    clone.add_argument("--topic", help="in that one alone")

    offsets = add_actions(actions, "offsets", "a group's progress as a file")
    export = add_command(offsets, "export", "write it, as the classic JSON", "progress:write")
    export.add_argument("group", metavar="GROUP")
    export.add_argument("file", metavar="FILE", nargs="?", default="-", help="(standard output)")
    load = add_command(offsets, "import", "set it to what such a file says", "progress:read")
    load.add_argument("group", metavar="GROUP")
    load.add_argument("file", metavar="FILE", help="- reads standard input")
    load.add_argument("--as", dest="name_in_file", metavar="NAME", help="what the file calls the group (GROUP)")


def _add_message(actions: Any) -> None:
    send = add_command(actions, "send", "send a message", "messages:send")
    send.add_argument("topic", metavar="TOPIC")
    send.add_argument("body", metavar="BODY", help="the body; - reads it from standard input")
    send.add_argument("--tag", help="one word that consumers can select by")
    send.add_argument("--key", action="append", default=[], help="a word to look it up by; may be repeated")
    send.add_argument(
        "--property", action="append", default=[], type=key_value, metavar="NAME=VALUE", help="may be repeated"
    )
    send.add_argument("--delay", type=duration, help="deliver it so much later")
    send.add_argument("--count", type=number(1, SEND_MAX), default=1, help="how many times to send it (1)")

    receive = add_command(actions, "receive", "take messages for a group", "messages:receive")
    receive.add_argument("topic", metavar="TOPIC")
    receive.add_argument("--group", required=True, help="the consumer group to receive for")
    receive.add_argument("--max", type=number(1, RECEIVE_MAX), default=RECEIVE_MAX, help="at most so many (32)")
    receive.add_argument(
        "--invisible", type=duration, default="30s", metavar="DURATION", help="how long nobody else gets them (30s)"
    )
    receive.add_argument(
        "--wait", type=duration, default="15s", metavar="DURATION", help="how long to wait for the first one (15s)"
    )
    wanted = receive.add_mutually_exclusive_group()
    wanted.add_argument("--filter", default="*", metavar="TAGS", help="tags such as 'A || B' (*)")
    wanted.add_argument("--sql", metavar="EXPRESSION", help="a SQL filter on properties, such as 'a > 3'")
    receive.add_argument(
        "--ack",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="done once printed: they never come again; without it they come again when --invisible is over",
    )

    peek = add_command(actions, "peek", "look at the oldest messages, holding nothing", "messages:peek")
    peek.add_argument("topic", metavar="TOPIC")
    peek.add_argument("--queue", type=number(0, QUEUES_MAX), metavar="ID", help="of one queue only")
    peek.add_argument(
        "--from", type=number(0, OFFSET_MAX), metavar="OFFSET", dest="from_offset", help="from there on; with --queue"
    )
    _add_max(peek)

    scheduled = add_command(actions, "scheduled", "delayed messages and halves of transactions", "messages:list_all")
    scheduled.add_argument("--topic", required=True)
    scheduled.add_argument("--max", type=number(1, SEND_MAX), default=100, help="how many to show, by due time (100)")

    cancel = add_command(actions, "cancel", "take back what is scheduled; it cannot be undone", "messages:cancel")
    cancel.add_argument("message_id", metavar="ID", nargs="*", help="a message's id")
    cancel.add_argument("--topic", required=True)
    cancel.add_argument("--key", help="all that have this key, at most 1,000 at once")

    get = add_command(actions, "get", "one message: its state in every group, and its history", "messages:get")
    get.add_argument("message_id", metavar="ID")
    get.add_argument("--topic", help="look there alone")


def _add_filter(actions: Any) -> None:
    test = add_command(actions, "test", "what a SQL filter would have wanted of stored messages", "filters:test")
    test.add_argument("expression", metavar="EXPRESSION", help="such as \"a > 3 AND TAGS IN ('x', 'y')\"")
    test.add_argument("--topic", required=True, help="whose messages to judge")
    test.add_argument("--last", type=duration, metavar="DURATION", help="those stored in this time (all)")
    test.add_argument(
        "--max", type=number(1, SHOWN_MAX), default=10, metavar="N", help="how many of the newest matches to show (10)"
    )


def _add_why(commands: Any) -> None:
    why = add_command(commands, "why", "why a message is where it is, in one sentence", "messages:explain")
    why.add_argument("message_id", metavar="ID")
    why.add_argument("--group", required=True, help="the consumer group that waits for it")
    why.add_argument("--topic", help="look there alone")


def _add_relay(commands: Any) -> None:
    relay = add_command(commands, "relay", "send what an outbox table holds, until stopped", "relay:relay")
    relay.add_argument(
        "--database-url", required=True, metavar="URL", help="SQLAlchemy's URL of the database with the outbox"
    )
    relay.add_argument("--once", action="store_true", help="end when nothing is left to send")


def _add_acl(actions: Any) -> None:
    user = add_actions(actions, "user", "look after users")
    add = _add_offline(user, "add", "make a user", "acl:add_user")
    add.add_argument("name", metavar="ACCESS_KEY")
    add.add_argument("--admin", action="store_true", help="it may do everything, and administer the server")
    _add_secret(add)
    _add_offline(user, "list", "every user", "acl:list_users")
    rotate = _add_offline(user, "rotate", "give a user another secret; the old one counts no more", "acl:rotate_secret")
    rotate.add_argument("name", metavar="ACCESS_KEY")
    _add_secret(rotate)
    for name, text in (("disable", "shut a user out"), ("enable", "let a user in again")):
        _add_offline(user, name, text, f"acl:{name}_user").add_argument("name", metavar="ACCESS_KEY")
    remove = _add_offline(user, "remove", "remove a user with its policies", "acl:remove_user")
    remove.add_argument("name", metavar="ACCESS_KEY")
    remove.add_argument("--yes", action="store_true", help="do not ask")

    policy = add_actions(actions, "policy", "say what users may do")
    add = _add_offline(policy, "add", "allow a user something, or deny it; a denial wins", "acl:add_policy")
    add.add_argument("user", metavar="ACCESS_KEY")
    add.add_argument("effect", type=str.upper, choices=("ALLOW", "DENY"), metavar="allow|deny")
    add.add_argument("actions", type=actions_named, metavar="PUB|SUB|PUB,SUB")
    _add_resource(add, "topic:NAME, topic:PREFIX* or group:NAME; of --namespace")
    listing = _add_offline(policy, "list", "every policy", "acl:list_policies")
    listing.add_argument("user", metavar="ACCESS_KEY", nargs="?", help="of this user alone")
    remove = _add_offline(policy, "remove", "remove a policy", "acl:remove_policy")
    remove.add_argument("id", type=number(1, ID_MAX), metavar="POLICY")

    explain = _add_offline(actions, "explain", "whether a user may do something, and why", "acl:explain")
    explain.add_argument("user", metavar="ACCESS_KEY")
    explain.add_argument("what", type=str.upper, choices=("PUB", "SUB"), metavar="PUB|SUB")
    _add_resource(explain, "topic:NAME or group:NAME; of --namespace")


def _add_offline(commands: Any, name: str, text: str, work: str) -> argparse.ArgumentParser:
    """A command that needs no server where it is told the database."""
    parser = add_command(commands, name, text, work)
    parser.add_argument("--database-url", metavar="URL", help="do it on this database, while no server runs")
    return parser


def _add_secret(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--secret-from",
        type=secret_source,
        metavar="SOURCE",
        help="the secret: stdin, prompt or env:NAME; without it one is made, and shown once",
    )


def _add_resource(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("resource", type=resource, metavar="RESOURCE", help=text)


def _add_queues(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--queues", type=number(1, QUEUES_MAX), metavar="N", help=text)


def _add_types(parser: argparse.ArgumentParser, text: str) -> None:
    kinds = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY")
    parser.add_argument("--type", action="append", default=[], type=str.upper, choices=kinds, dest="types", help=text)


def _add_policy(parser: argparse.ArgumentParser, attempts: str, retry: str, in_order: str, history: str) -> None:
    parser.add_argument(
        "--max-attempts",
        type=number(1, ATTEMPTS_MAX),
        metavar="N",
        help=f"deliveries of a message before it is a dead letter, the first included {attempts}".rstrip(),
    )
    parser.add_argument(
        "--retry",
        type=retry_intervals,
        default=[],
        metavar="DURATIONS",
        help="the pauses before a push consumer's next attempts, the last one repeats; or"
        f" exponential:initial=5s,max=2h,multiplier=2 {retry}".rstrip(),
    )
    parser.add_argument(
        "--fifo-retry",
        type=duration,
        metavar="DURATION",
        help=f"the pause before a message group goes on with one of its messages that failed {in_order}".rstrip(),
    )
    parser.add_argument(
        "--history",
        choices=("none", "errors", "all"),
        help=f"which steps of its messages it remembers {history}".rstrip(),
    )


def _add_delete(actions: Any, text: str, work: str) -> None:
    delete = add_command(actions, "delete", text, work)
    delete.add_argument("name", metavar="NAME")
    delete.add_argument("--yes", action="store_true", help="do not ask")


def _add_max(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--max", type=number(1, PAGE_MAX), default=32, metavar="N", help="at most so many (32)")
