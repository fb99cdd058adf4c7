"""The client's commands with their arguments. Each command names the function that does the work."""

from __future__ import annotations

import argparse
from typing import Any

from popclient.cli.arguments import (
    TIMES,
    add_actions,
    add_command,
    add_max,
    add_yes,
    duration,
    key_value,
    moment,
    number,
    position,
    resource,
    retry_intervals,
    secret_source,
)
from popclient.cli.arguments import actions as actions_named
from popclient.cli.dead_letters.commands import add_dlq
from popclient.cli.mirroring.commands import add_mirror, add_mirrors
from popclient.cli.moving.commands import add_move
from popclient.message import PRIORITY_MAX

# The server's limits: QUEUE_COUNT_MAX in popserver/model/topic.py and MAX_ATTEMPTS_MAX in popserver/model/group.py.
QUEUES_MAX = 1_024
ATTEMPTS_MAX = 1_000
OFFSET_MAX = 2**40
ID_MAX = 2**63 - 1
PAGE_MAX = 1_000
RECEIVE_MAX = 32
SEND_MAX = 1_000_000
SHOWN_MAX = 100


def add_commands(commands: Any) -> None:
    """Add the client's commands to the parser of `popmq`."""
    _add_topic(add_actions(commands, "topic", "manage topics"))
    _add_group(add_actions(commands, "group", "manage consumer groups"))
    _add_lite(add_actions(commands, "lite", "show lite topics"))
    _add_client(add_actions(commands, "client", "list connected clients, and send them requests"))
    _add_message(add_actions(commands, "message", "send, receive and show messages"))
    _add_filter(add_actions(commands, "filter", "try SQL filters"))
    add_dlq(add_actions(commands, "dlq", "show, redrive, export or delete dead letters"))
    _add_acl(add_actions(commands, "acl", "manage users and their policies"))
    _add_relay(commands)
    add_mirror(commands)
    add_mirrors(add_actions(commands, "mirrors", "show and forget mirrors"))
    add_move(add_actions(commands, "move", "move topics and groups to another server, while they are used"))
    _add_why(commands)
    clock = add_actions(commands, "clock", "the system clock of the server")
    add_command(clock, "confirm", "confirm that the clock is right; retention then continues", "server:confirm_clock")
    server = add_actions(commands, "server", "take a server away")
    drain = add_command(
        server,
        "drain",
        "stop the server at --endpoint as soon as its clients have had the time to go to the other servers",
        "server:drain",
    )
    drain.add_argument("--wait", action="store_true", help="return when it takes no more calls")
    _add_top(commands)
    add_command(commands, "health", "show whether the server works and should get requests, and why", "server:health")
    repair = add_command(
        commands,
        "repair",
        "show defects of the store that keep messages from being delivered; --yes repairs them",
        "server:repair",
    )
    repair.add_argument("--yes", action="store_true", help="repair the defects")
    add_command(commands, "status", "show server statistics, and the lag of each group", "server:status")


def _add_topic(actions: Any) -> None:
    create = add_command(actions, "create", "create a topic", "topics:create", "name")
    _add_queues(create, "message queues (8)")
    _add_types(create, "a message type that it accepts; may be repeated (NORMAL)")
    _add_expiry(create, "delete a lite topic this long after its last message (never)")
    _add_if_not_exists(create)
    add_command(actions, "list", "list the topics", "topics:list_all")
    add_command(actions, "show", "show a topic and its queues", "topics:show", "name")
    update = add_command(actions, "update", "add queues, change the accepted message types", "topics:update", "name")
    _add_queues(update, "the new number of message queues; it can only grow")
    _add_types(update, "a message type that it accepts from now on; may be repeated")
    _add_expiry(update, "delete a lite topic this long after its last message; 0s: never")
    close = add_command(actions, "close", "refuse the messages of its producers", "topics:close", "name")
    close.add_argument("--because", required=True, metavar="SENTENCE", help="what its producers read")
    add_command(actions, "open", "let a closed topic take messages of producers again", "topics:reopen", "name")
    _add_delete(actions, "delete a topic with its messages", "topics:delete")


def _add_group(actions: Any) -> None:
    create = add_command(actions, "create", "create a consumer group", "groups:create", "name")
    _add_policy(create, "(17)", "(10s,30s,1m … 2h)", "(3s)", "(errors)")
    create.add_argument(
        "--consume-from", choices=("earliest", "latest"), help="the position of its first receive in a topic (earliest)"
    )
    _add_lite_model(
        create, "for lite topics: each client gets those that it names, shared or exclusive, or all (wildcard)"
    )
    _add_if_not_exists(create)
    add_command(actions, "list", "list the consumer groups", "groups:list_all")
    add_command(actions, "show", "show a group and its lag", "groups:show", "name")
    update = add_command(actions, "update", "change attempts, retry intervals, history, lite model", "groups:update")
    update.add_argument("name", metavar="NAME")
    _add_policy(update, "", "", "", "")
    _add_lite_model(update, "as in create; only for a group that was never used")
    _add_delete(actions, "delete a group with its progress and its dead letters", "groups:delete")
    _add_progress(actions)


def _add_lite(actions: Any) -> None:
    listed = add_command(actions, "list", "list the lite topics of a topic", "topics:list_lite", "topic")
    listed.add_argument("--prefix", default="", help="only those whose names begin with this")
    listed.add_argument("--after", default="", metavar="NAME", help="only those after this name")
    add_max(listed, PAGE_MAX)
    show = add_command(actions, "show", "show a lite topic and its state in each group", "topics:show_lite", "topic")
    show.add_argument("lite_topic", metavar="NAME")


def _add_client(actions: Any) -> None:
    listed = add_command(actions, "list", "list the clients connected to this server", "clients:list_all")
    listed.add_argument("--group", help="only the consumers of this group")
    stack = add_command(actions, "stack", "show the stack traces of a client's threads", "clients:stack")
    verify = add_command(actions, "verify", "let a client's listener consume a message as a trial", "clients:verify")
    reconnect = add_command(actions, "reconnect", "make a client open a new session", "clients:reconnect")
    for each in (stack, verify, reconnect):
        each.add_argument("client_id", metavar="CLIENT_ID")
    verify.add_argument("message_id", metavar="ID")
    verify.add_argument("--topic", help="search only this topic")


def _add_progress(actions: Any) -> None:
    lag = add_command(actions, "lag", "show the lag of a group for each queue", "progress:lag", "group")
    lag.add_argument("--topic", help="only in this topic")

    reset = add_command(
        actions, "reset", "move a group to another offset; see --dry-run", "progress:reset", "group", "topic"
    )
    where = reset.add_mutually_exclusive_group(required=True)
    where.add_argument("--to", type=position, metavar="POSITION", help=f"beginning, end, or a time: {TIMES}")
    where.add_argument("--offset", type=number(0, OFFSET_MAX), metavar="N", help="an offset; with --queue")
    reset.add_argument("--queue", type=number(0, QUEUES_MAX - 1), metavar="ID", help="only in this queue (all)")
    reset.add_argument("--dry-run", action="store_true", help="show the result without changing anything")
    reset.add_argument("--force", action="store_true", help="also in a topic that the group has not read yet")
    add_yes(reset)

    skip = add_command(actions, "skip", "mark one message as consumed without delivering it", "progress:skip", "group")
    skip.add_argument("message_id", metavar="ID")
    skip.add_argument("--topic", help="search only this topic")
    skip.add_argument("--force", action="store_true", help="also a message that a consumer holds: its hold ends")
    add_yes(skip)

    pause = add_command(actions, "pause", "stop the deliveries to a group until it is resumed", "progress:pause")
    resume = add_command(actions, "resume", "end a pause; other pauses of the group stay", "progress:resume")
    for each in (pause, resume):
        each.add_argument("group", metavar="GROUP")
        each.add_argument("--topic", help="only in this topic (all)")
        part = each.add_mutually_exclusive_group()
        part.add_argument("--message-group", metavar="NAME", help="only the messages of this message group (all)")
        # A lite topic is stored as a message group.
        part.add_argument("--lite-topic", metavar="NAME", dest="message_group", help="only those of this lite topic")

    clone = add_command(
        actions, "clone", "start a group at the progress of another group", "progress:clone", "source", "group"
    )
    clone.add_argument("--topic", help="only in this topic")

    offsets = add_actions(actions, "offsets", "export and import a group's progress")
    export = add_command(
        offsets, "export", "export progress in the classic JSON format", "progress:export_offsets", "group"
    )
    export.add_argument("file", metavar="FILE", nargs="?", default="-", help="the file (standard output)")
    load = add_command(offsets, "import", "import progress from an exported file", "progress:import_offsets", "group")
    load.add_argument("file", metavar="FILE", help="the file; - is standard input")
    load.add_argument("--as", dest="name_in_file", metavar="NAME", help="the name of the group in the file (GROUP)")
    add_yes(load)


def _add_message(actions: Any) -> None:
    send = add_command(actions, "send", "send a message", "messages:send", "topic")
    send.add_argument("body", metavar="BODY", help="the body; - reads it from standard input")
    send.add_argument("--tag", help="a word by which consumers filter")
    send.add_argument("--key", action="append", default=[], help="a word to find the message by; may be repeated")
    send.add_argument(
        "--property", action="append", default=[], type=key_value, metavar="NAME=VALUE", help="may be repeated"
    )
    kind = send.add_mutually_exclusive_group()
    kind.add_argument("--delay", type=duration, help="deliver it after this duration")
    kind.add_argument("--message-group", metavar="NAME", help="deliver it after the earlier ones of this message group")
    kind.add_argument("--priority", type=number(0, PRIORITY_MAX), help="0 to 32767; higher first, in a PRIORITY topic")
    kind.add_argument("--lite-topic", metavar="NAME", help="the lite topic, in a topic of the type LITE")
    send.add_argument("--idempotency-key", metavar="KEY", help="with a repeated key nothing is stored again")
    send.add_argument("--count", type=number(1, SEND_MAX), default=1, help="send it this many times (1)")

    receive = add_command(actions, "receive", "receive messages for a group", "messages:receive", "topic")
    receive.add_argument("--group", required=True, help="the consumer group to receive for")
    receive.add_argument("--max", type=number(1, RECEIVE_MAX), default=RECEIVE_MAX, help="at most this many (32)")
    receive.add_argument(
        "--invisible", type=duration, default="30s", metavar="DURATION", help="how long to hold them (30s)"
    )
    receive.add_argument(
        "--wait", type=duration, default="15s", metavar="DURATION", help="how long to wait for the first one (15s)"
    )
    wanted = receive.add_mutually_exclusive_group()
    wanted.add_argument(
        "--filter", default="*", metavar="TAGS", help="tags such as 'A || B' (*); other messages are done for the group"
    )
    wanted.add_argument("--sql", metavar="EXPRESSION", help="a SQL filter on properties, such as 'a > 3'")
    wanted.add_argument("--lite-topic", metavar="NAME", help="as a lite consumer that subscribes to this lite topic")
    receive.add_argument(
        "--ack",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="ack them after they are printed; otherwise they are delivered again after --invisible",
    )

    peek = add_command(actions, "peek", "show the oldest messages without receiving them", "messages:peek", "topic")
    peek.add_argument("--queue", type=number(0, QUEUES_MAX - 1), metavar="ID", help="only of this queue")
    peek.add_argument(
        "--from", type=number(0, OFFSET_MAX), metavar="OFFSET", dest="from_offset", help="first offset; with --queue"
    )
    add_max(peek, PAGE_MAX)

    find = add_command(actions, "find", "find stored messages by key, tag, condition or time", "filters:find")
    find.add_argument("--key", help="one of the message's keys")
    find.add_argument("--topic", help="only in this topic; needed without --key")
    find.add_argument("--tag", help="its tag")
    find.add_argument("--lite-topic", metavar="NAME", help="its lite topic")
    find.add_argument("--where", default="", metavar="EXPRESSION", help="a SQL filter on properties, such as 'a > 3'")
    find.add_argument("--since", type=moment, metavar="TIME", help=f"stored since this time: {TIMES}")
    find.add_argument("--until", type=moment, metavar="TIME", help="stored before this time, in the same form")
    find.add_argument("--max", type=number(1, SHOWN_MAX), default=10, metavar="N", help="at most this many (10)")
    find.add_argument("--page", default="", help="continue an earlier search: its last line has the page")

    scheduled = add_command(
        actions, "scheduled", "list delayed and undecided transactional messages", "messages:list_scheduled"
    )
    scheduled.add_argument("--topic", required=True)
    scheduled.add_argument("--max", type=number(1, SEND_MAX), default=100, help="at most this many, by due time (100)")

    cancel = add_command(actions, "cancel", "remove scheduled messages before they are delivered", "messages:cancel")
    cancel.add_argument("message_id", metavar="ID", nargs="*", help="the id of a message")
    cancel.add_argument("--topic", required=True)
    cancel.add_argument("--key", help="all messages with this key, at most 1,000 at once")
    add_yes(cancel)

    get = add_command(actions, "get", "show a message, its state in each group, and its history", "messages:get")
    get.add_argument("message_id", metavar="ID")
    get.add_argument("--topic", help="search only this topic")


def _add_filter(actions: Any) -> None:
    test = add_command(actions, "test", "apply a SQL filter to stored messages", "filters:test")
    test.add_argument("expression", metavar="EXPRESSION", help="such as \"a > 3 AND TAGS IN ('x', 'y')\"")
    test.add_argument("--topic", required=True, help="the topic of the messages")
    test.add_argument("--last", type=duration, metavar="DURATION", help="only those stored within this duration (all)")
    test.add_argument(
        "--max", type=number(1, SHOWN_MAX), default=10, metavar="N", help="at most this many of the newest (10)"
    )


def _add_why(commands: Any) -> None:
    why = add_command(commands, "why", "explain the state of a message in one sentence", "messages:explain")
    why.add_argument("message_id", metavar="ID")
    why.add_argument("--group", required=True, help="the consumer group")
    why.add_argument("--topic", help="search only this topic")


def _add_top(commands: Any) -> None:
    top = add_command(commands, "top", "show the groups of a server live on the terminal", "top.command:top")
    top.add_argument("--once", action="store_true", help="print one frame and exit")
    top.add_argument("--interval", type=duration, default="2s", metavar="DURATION", help="time between frames (2s)")
    top.add_argument(
        "--sort",
        choices=("r", "o", "i", "d", "n"),
        default="r",
        help="r: most ready first (the default), o: oldest ready, i: in/s, d: dead letters, n: by name",
    )


def _add_relay(commands: Any) -> None:
    relay = add_command(commands, "relay", "send the messages of an outbox table, until stopped", "relay:relay")
    relay.add_argument(
        "--database-url", required=True, metavar="URL", help="SQLAlchemy URL of the database with the outbox"
    )
    relay.add_argument("--once", action="store_true", help="exit when the outbox is empty")


def _add_acl(actions: Any) -> None:
    user = add_actions(actions, "user", "manage users")
    add = _add_offline(user, "add", "create a user", "acl:add_user")
    add.add_argument("name", metavar="ACCESS_KEY")
    add.add_argument("--admin", action="store_true", help="make it an administrator, who may do everything")
    _add_secret(add)
    _add_offline(user, "list", "list the users", "acl:list_users")
    rotate = _add_offline(user, "rotate", "replace the secret of a user; the old one is refused", "acl:rotate_secret")
    rotate.add_argument("name", metavar="ACCESS_KEY")
    _add_secret(rotate)
    add_yes(rotate)
    for name, text in (("disable", "refuse all calls of a user"), ("enable", "allow a disabled user again")):
        _add_offline(user, name, text, f"acl:{name}_user").add_argument("name", metavar="ACCESS_KEY")
    remove = _add_offline(user, "remove", "remove a user with its policies", "acl:remove_user")
    remove.add_argument("name", metavar="ACCESS_KEY")
    add_yes(remove)

    policy = add_actions(actions, "policy", "manage the policies of users")
    add = _add_offline(policy, "add", "allow or deny a user an action; a denial wins", "acl:add_policy")
    add.add_argument("user", metavar="ACCESS_KEY")
    add.add_argument("effect", type=str.upper, choices=("ALLOW", "DENY"), metavar="allow|deny")
    add.add_argument("actions", type=actions_named, metavar="PUB|SUB|PUB,SUB")
    _add_resource(add, "topic:NAME, topic:PREFIX* or group:NAME; of --namespace")
    listing = _add_offline(policy, "list", "list the policies", "acl:list_policies")
    listing.add_argument("user", metavar="ACCESS_KEY", nargs="?", help="only of this user")
    remove = _add_offline(policy, "remove", "remove a policy", "acl:remove_policy")
    remove.add_argument("id", type=number(1, ID_MAX), metavar="POLICY")
    add_yes(remove)

    explain = _add_offline(actions, "explain", "show whether a user may do something, and why", "acl:explain")
    explain.add_argument("user", metavar="ACCESS_KEY")
    explain.add_argument("what", type=str.upper, choices=("PUB", "SUB"), metavar="PUB|SUB")
    _add_resource(explain, "topic:NAME or group:NAME; of --namespace")


def _add_offline(commands: Any, name: str, text: str, work: str) -> argparse.ArgumentParser:
    """A command that works without a server if the URL of the database is given."""
    parser = add_command(commands, name, text, work)
    parser.add_argument("--database-url", metavar="URL", help="use this database; no server may run on it")
    return parser


def _add_secret(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--secret-from",
        type=secret_source,
        metavar="SOURCE",
        help="read the secret from stdin, prompt or env:NAME; by default popmq makes a secret and shows it once",
    )


def _add_resource(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("resource", type=resource, metavar="RESOURCE", help=text)


def _add_if_not_exists(parser: argparse.ArgumentParser) -> None:
    text = "if it exists, do not change it, say what differs, and succeed"
    parser.add_argument("--if-not-exists", action="store_true", help=text)


def _add_queues(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--queues", type=number(1, QUEUES_MAX), metavar="N", help=text)


def _add_types(parser: argparse.ArgumentParser, text: str) -> None:
    kinds = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "LITE")
    parser.add_argument("--type", action="append", default=[], type=str.upper, choices=kinds, dest="types", help=text)


def _add_expiry(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--lite-expires", type=duration, metavar="DURATION", help=text)


def _add_lite_model(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--lite", choices=("shared", "exclusive", "wildcard"), help=text)


def _add_policy(parser: argparse.ArgumentParser, attempts: str, retry: str, in_order: str, history: str) -> None:
    parser.add_argument(
        "--max-attempts",
        type=number(1, ATTEMPTS_MAX),
        metavar="N",
        help=f"deliveries of a message, with the first, before it becomes a dead letter {attempts}".rstrip(),
    )
    parser.add_argument(
        "--retry",
        type=retry_intervals,
        default=[],
        metavar="DURATIONS",
        help="the intervals before the next deliveries to a push consumer, the last one repeats; or"
        f" exponential:initial=5s,max=2h,multiplier=2 {retry}".rstrip(),
    )
    parser.add_argument(
        "--fifo-retry",
        type=duration,
        metavar="DURATION",
        help=f"the interval before a failed message of a message group is delivered again {in_order}".rstrip(),
    )
    parser.add_argument(
        "--history",
        choices=("none", "errors", "all"),
        help=f"which steps of its messages the server records {history}".rstrip(),
    )


def _add_delete(actions: Any, text: str, work: str) -> None:
    delete = add_command(actions, "delete", text, work, "name")
    add_yes(delete)
