"""Topics: queues, who reads them, the newest messages, a message on trial; delayed and half messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple, cast
from urllib.parse import urlencode

from starlette.responses import Response

from popclient.admin import Queue, ScheduledMessage, Topic
from popclient.aio import Message, Producer
from popclient.message import MessageView
from popconsole import words
from popconsole.bodies import excerpt
from popconsole.pages.charts import charts_of, lines
from popconsole.paging import page_of
from popconsole.pictures.strip import strip_of
from popconsole.settings import LISTED_MAX
from popconsole.visits import Refused, Visit

OWN: Final = ("%DLQ%", "%RETRY%")
SHOWN: Final = 25
SCHEDULED_MAX: Final = 500
SCHEDULED_SHOWN: Final = 50
BODIES_MAX: Final = 32 * 1024 * 1024  # bytes; no further topic or queue is asked beyond
TYPES: Final = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "LITE")


class QueueBar(NamedTuple):
    """A queue, how many messages it stores, and its bar, of 1,000: its share of the topic."""

    queue: Queue
    stored: int
    width: float


async def topics(visit: Visit) -> Response:
    await visit.pulse.now(visit.admin)
    found: list[Topic] = await visit.admin.list_topics(max_topics=LISTED_MAX)
    wanted = visit.asked("name").lower()
    rows = [each for each in found if wanted in each.name.lower()]
    own = [each for each in rows if each.name.startswith(OWN)]
    of_users = [each for each in rows if not each.name.startswith(OWN)]
    return visit.show(
        "topics.html",
        now=visit.pulse.time,
        rows=page_of(visit, of_users),
        stored=sum(each.message_count for each in of_users),
        own=page_of(visit, own, "own_from"),
        is_cut=len(found) >= LISTED_MAX,
        wanted=visit.asked("name"),
        types=TYPES,
    )


async def topic(visit: Visit) -> Response:
    """One topic."""
    name = visit.named("topic")
    status = await visit.pulse.now(visit.admin)
    found = await visit.admin.get_topic(name)
    queue_id = visit.asked_number("queue") if visit.asked("queue") else None
    newest = await visit.attempt(_newest(visit, found, queue_id))
    found_messages, is_cut = newest.value or ([], False)
    messages = sorted(found_messages, key=lambda each: each.store_timestamp or each.born_timestamp, reverse=True)
    return visit.show(
        "topic.html",
        now=visit.pulse.time,
        topic=found,
        queues=page_of(visit, bars_of(found.queues), "queues_from"),
        readers=page_of(visit, [each for each in status.lag if each.topic == name], "readers_from"),
        messages=[(each, excerpt(each)) for each in messages[:SHOWN]],
        is_cut=is_cut,
        queue_id=queue_id,
        failure=newest.failure,
        is_own=name.startswith(OWN),
        types=TYPES,
        **await charts_of(visit, "topics", name, topic=name),
    )


async def activity(visit: Visit) -> Response:
    """The lines of a topic's charts."""
    return await lines(visit, topic=visit.named("topic"))


async def _newest(visit: Visit, topic: Topic, queue_id: int | None) -> tuple[list[MessageView], bool]:
    """The last messages of each queue, of at most sixteen queues; and whether large bodies ended it early."""
    queues = [each for each in topic.queues if queue_id is None or each.id == queue_id]
    each_max = max(2, SHOWN // max(1, len(queues))) if queue_id is None else SHOWN
    found: list[MessageView] = []
    for each in [one for one in queues if one.max_offset > one.min_offset][:16]:
        if _octets(found) > BODIES_MAX:
            return found, True
        begin = max(each.min_offset, each.max_offset - each_max)
        found += await visit.admin.peek_messages(topic.name, queue_id=each.id, from_offset=begin, max_messages=each_max)
    return found, False


def _octets(messages: Iterable[MessageView]) -> int:
    return sum(len(each.stored_body) for each in messages)


def bars_of(queues: Sequence[Queue]) -> list[QueueBar]:
    stored = [each.max_offset - each.min_offset for each in queues]
    total = sum(stored) or 1
    return [QueueBar(queue, each, round(1_000 * each / total, 1)) for queue, each in zip(queues, stored, strict=True)]


async def create(visit: Visit) -> Response:
    name = visit.given("name").strip()
    queues = _number(visit.given("queues") or "0", "queues")
    made = await visit.admin.create_topic(name, queue_count=queues, accept_message_types=visit.form.get("type", []))
    return visit.go(visit.path("topics", made.name), f"Topic {made.name} is there.")


async def publish(visit: Visit) -> Response:
    """Send one message, as a producer would."""
    name = visit.named("topic")
    delay, priority = visit.given("delay").strip(), visit.given("priority").strip()
    body = visit.given("body").replace("\r\n", "\n")
    if not body:
        raise Refused("a message needs a body")
    message = Message(
        name,
        body,
        tag=visit.given("tag").strip() or None,
        keys=visit.given("keys").split(),
        properties=_properties(visit.given("properties")),
        message_group=visit.given("message_group").strip() or None,
        lite_topic=visit.given("lite_topic").strip() or None,
        priority=_number(priority, "priority") if priority else None,
        delay=timedelta(seconds=_number(delay, "delay in seconds")) if delay else None,
    )
    async with Producer(visit.session.config) as producer:
        receipt = await producer.send(message)
    return visit.go(
        f"{visit.path('messages', receipt.message_id)}?{urlencode({'topic': name})}", "The message is stored."
    )


def _properties(written: str) -> dict[str, str]:
    """One `name=value` a line."""
    found = {}
    for line in filter(None, map(str.strip, written.splitlines())):
        name, equals, value = line.partition("=")
        if not equals or not name:
            raise Refused(f"'{line}' is no property; write name=value, one a line")
        found[name.strip()] = value.strip()
    return found


async def delete_preview(visit: Visit) -> Response:
    found = await visit.admin.get_topic(visit.named("topic"))
    status = await visit.pulse.now(visit.admin)
    readers = [each for each in status.lag if each.topic == found.name]
    return visit.show("delete_topic.html", topic=found, readers=readers)


async def delete(visit: Visit) -> Response:
    name = visit.named("topic")
    visit.require_name(name)
    await visit.admin.delete_topic(name)
    await visit.pulse.fresh(visit.admin)
    return visit.go(visit.path("topics"), f"Topic {name} is deleted.")


async def scheduled(visit: Visit) -> Response:
    """What waits for its time, and half messages that wait for their producer."""
    status = await visit.pulse.now(visit.admin)
    topics = await visit.admin.list_topics(max_topics=LISTED_MAX)
    names = [each.name for each in topics if not each.name.startswith(OWN)]
    chosen = visit.asked("topic")
    after = _after(visit.asked("after")) if chosen and visit.asked("after") else None
    found: list[tuple[str, ScheduledMessage]] = []
    failure, is_cut = "", False
    for name in [chosen] if chosen else names[:50]:
        if _octets(each.message for _, each in found) > BODIES_MAX:
            is_cut = True
            break
        listed = await visit.attempt(visit.admin.list_scheduled(name, after=after, max_messages=SCHEDULED_MAX))
        if listed.failure:
            failure = listed.failure
            continue
        is_cut = is_cut or len(listed.value) == SCHEDULED_MAX
        found += [(name, each) for each in listed.value]
    found.sort(key=lambda pair: pair[1].due_at)
    delayed = [pair for pair in found if pair[1].kind == "DELAY"]
    halves = [pair for pair in found if pair[1].kind == "HALF"]
    return visit.show(
        "scheduled.html",
        now=visit.pulse.time,
        topics=names,
        topic=chosen,
        delayed=[(name, each, excerpt(each.message)) for name, each in delayed[:SCHEDULED_SHOWN]],
        halves=[(name, each, excerpt(each.message)) for name, each in halves[:SCHEDULED_SHOWN]],
        more_delayed=max(0, len(delayed) - SCHEDULED_SHOWN),
        after=after is not None,
        next_after=_next_after([each for _, each in delayed], [each for _, each in halves]),
        counts=(len(delayed), len(halves)),
        strip=strip_of([each.due_at for _, each in delayed], visit.pulse.time),
        is_cut=is_cut,
        failure=failure,
        discarded=status.discarded_transactions,
    )


def _next_after(delayed: Sequence[ScheduledMessage], halves: Sequence[ScheduledMessage]) -> str:
    """The last one that the page shows, where it leaves some out; empty where it shows all."""
    longer = delayed if len(delayed) > SCHEDULED_SHOWN else halves
    last = longer[SCHEDULED_SHOWN - 1] if len(longer) > SCHEDULED_SHOWN else None
    return "" if last is None else f"{words.epoch_ms(last.due_at)}-{last.id}"


def _after(written: str) -> ScheduledMessage:
    """The place in the list that `_next_after` has written."""
    due, _, number = written.partition("-")
    if not (due.isdecimal() and number.isdecimal() and len(due) < 14 and len(number) < 19):
        raise Refused(f"after is '{written}'; it must be that of a link on the page before")
    due_at = datetime.fromtimestamp(int(due) / 1_000, UTC)
    return ScheduledMessage(int(number), cast("MessageView", None), "DELAY", due_at, 0, "")


async def cancel(visit: Visit) -> Response:
    """Take messages out of the schedule: delayed ones, and halves of transactions. An id has its topic before it."""
    by_topic: dict[str, list[str]] = {}
    for each in visit.form.get("id", []):
        name, _, message_id = each.partition(" ")
        by_topic.setdefault(name, []).append(message_id)
    if not by_topic:
        raise Refused("nothing was cancelled: no message is checked")
    gone = [len(await visit.admin.cancel_scheduled(name, ids)) for name, ids in by_topic.items()]
    late = sum(map(len, by_topic.values())) - sum(gone)
    rest = f" {words.plural(late, 'other')} had left the schedule before." if late else ""
    of = words.listed(by_topic)
    return visit.go(
        visit.path("scheduled"), f"{words.plural(sum(gone), 'message')} of {of} will not be delivered.{rest}"
    )


def _number(written: str, what: str) -> int:
    if not written.isdecimal():
        raise Refused(f"{what}: '{written}' is no whole number")
    return int(written)
