"""What operators, servers and their background work do."""

from __future__ import annotations

from typing import Any

from popserver.access import sql as access_sql
from popserver.alerts import told
from popserver.alerts.rules import Alert, AlertKind
from popserver.alerts.told import RecordAlerts, RecordTold
from popserver.catalog import groups, topics
from popserver.catalog.closing import CloseQueues, close_queues
from popserver.catalog.groups import DeleteGroup, UpdateGroup
from popserver.catalog.topics import DeleteTopic, UpdateTopic
from popserver.charts import points
from popserver.charts.points import WritePoints
from popserver.charts.rules import ChartCounts, ChartKind, Delays, Owner
from popserver.cluster import sql as cluster_sql
from popserver.cluster.sql import AdoptClients, AttachClient, DetachClient, Heartbeat, Leave
from popserver.database.invariants.queries import Moments, StuckIn, first_page
from popserver.dead_letters import purge as dead_letters_purge
from popserver.dead_letters.purge import PurgeLetters
from popserver.dead_letters.rules import RedriveItem, Repair, Selection
from popserver.delivery.dead_letter_topic import ImportedLetter
from popserver.importing import imports
from popserver.importing.imports import Import, ImportDead, Imported
from popserver.lite import expire as lite_expire
from popserver.lite import subscriptions as lite_subscriptions
from popserver.lite.expire import ExpireLite
from popserver.lite.subscriptions import SyncLite
from popserver.maintenance import clock_notes, repair, retention
from popserver.maintenance.clock_notes import Note, Reading
from popserver.maintenance.repair import RepairRow, broken_in_page
from popserver.maintenance.retention import Retain
from popserver.members import locks
from popserver.members import sql as members_sql
from popserver.members.locks import Lock, Unlock
from popserver.members.sql import ClearMembers, JoinGroup, LeaveGroup
from popserver.messages import lite_topics, repeats
from popserver.messages.repeats import Expire
from popserver.mirrors import records
from popserver.mirrors.records import ForgetMirror, ReportMirror
from popserver.mirrors.rules import MirrorFacts
from popserver.model.acl import Action, Effect, ResourceKind
from popserver.model.group import ConsumeFrom, Group, HistoryLevel, Mode, Model
from popserver.model.message import SendResult
from popserver.model.states import MirrorState
from popserver.model.topic import MessageType, message_key
from popserver.progress import clone, pause, reset, unsubscribe
from popserver.progress import skip as progress_skip
from popserver.progress.clone import Clone
from popserver.progress.pause import SetPause
from popserver.progress.rules import Edge
from popserver.progress.skip import Skip
from popserver.progress.unsubscribe import Unsubscribe
from tests.frozen.acts import TouredStore, act
from tests.frozen.seed import World
from tests.support.builders import in_order, messages_of
from tests.support.lite_broker import lite_messages
from tests.support.open_store import HOUR, MINUTE, SECOND
from tests.support.progress import ORDERED, pull_group, reset_of
from tests.support.redrive import cancel, die, letter_ids, order, redrive_all, run, write_plan


@act
def create_and_change_topics(store: TouredStore, _world: World) -> None:
    made = store.topic("made", queues=2, accepts=ORDERED)
    store.group("of-made", meets=[made])
    store.one(topics.update_topic, UpdateTopic(made.name, 4, (*ORDERED, MessageType.DELAY)))
    store.one(topics.update_topic, UpdateTopic(made.name, closed_because="it has moved"))
    store.one(close_queues, CloseQueues(made.name, is_closed=True))


@act
def create_and_change_groups(store: TouredStore, world: World) -> None:
    latest = store.group("latest", consume_from=ConsumeFrom.LATEST)
    store.meet(latest, world.topic)
    store.one(groups.update_group, UpdateGroup(latest.name, 3, (SECOND,), HistoryLevel.NONE, MINUTE))
    pull_group(store, "made-to-pull")
    store.one(groups.set_group_mode, groups.SetGroupMode(world.group, Mode.POP))


@act
def change_users(store: TouredStore, _world: World) -> None:
    store.one(access_sql.create_user, access_sql.CreateUser("eve", 32 * "s", is_admin=True))
    store.one(access_sql.change_user, access_sql.ChangeUser("eve", disabled=True))
    for actions in ((Action.PUB,), (Action.SUB,)):
        wish = access_sql.AddPolicy("eve", Effect.ALLOW, actions, ResourceKind.TOPIC, _world.topic.name)
        policy = store.one(access_sql.add_policy, wish)
    store.one(access_sql.remove_policy, access_sql.RemovePolicy(policy.policy_id))
    store.one(access_sql.delete_user, access_sql.DeleteUser("eve"))
    with store.database.read() as conn:
        access_sql.load(conn)


@act
def attend(store: TouredStore, world: World) -> None:
    """Members come, want something else, and leave; locks of queues."""
    joins = [JoinGroup(world.pulling, "new", "s1", model, ()) for model in (Model.CLUSTERING, Model.BROADCASTING)]
    for each in joins:
        store.one(members_sql.attend, each)
    queues = world.topic.queues
    for client_id in ("c1", "c2"):
        store.one(locks.lock, Lock(world.pulling, client_id, queues))
    store.one(locks.unlock, Unlock(world.pulling, "c1", queues))
    store.one(members_sql.attend, LeaveGroup(world.pulling, "new", "s1"))


@act
def servers_come_and_go(store: TouredStore, _world: World) -> None:
    store.one(cluster_sql.heartbeat, Heartbeat("new", "h9:1", judges=True))
    store.one(cluster_sql.adopt_clients, AdoptClients())
    for _ in ("new", "again"):
        store.one(cluster_sql.attend, AttachClient("c1", "new", inherits=True))
    store.one(cluster_sql.attend, DetachClient("c1", "new"))
    store.one(cluster_sql.attend, DetachClient("c1", "new", everywhere=True))
    store.now_ms += HOUR
    store.one(cluster_sql.heartbeat, Heartbeat("new", "h9:1", judges=True))
    store.one(cluster_sql.leave, Leave("new"))
    store.one(members_sql.clear_members, ClearMembers())


@act
def note_the_clock(store: TouredStore, _world: World) -> None:
    for confirms in (False, True):
        store.one(clock_notes.note, Note(Reading(store.now_ms, store.now_ms), confirms))


@act
def redrive(store: TouredStore, world: World) -> None:
    """By a plan, a part of one that is cancelled then, and by name with a repair; to the group and to a topic."""
    target = store.topic("target")
    die(store, world.group, world.topic, 8)
    redrive_all(store, world.group, "all")
    again = store.receive(world.group, world.topic, 8)
    for each in again:
        store.forward(world.group, each)
    write_plan(store, world.group, "part")
    run(store, "part", 2)
    cancel(store, "part")
    first, second, *_ = letter_ids(store, world.group)[-4:]
    order(store, world.group, [RedriveItem(first, "why", Repair(b"other")), RedriveItem(second)], "named")
    write_plan(store, world.group, "elsewhere", target)
    run(store, "elsewhere", 2)
    write_plan(store, world.group, "filtered", selection=Selection(where="a = '1'", topic_id=world.topic.topic_id))
    run(store, "filtered")


@act
def redrive_message_groups_and_lite_topics(store: TouredStore, world: World) -> None:
    store.send(world.topic, in_order("dead", 3))
    store.send(world.lite, lite_messages("dead", 3, world.lite.name))
    for group, topic in ((world.group, world.topic), (world.shared, world.lite)):
        wish = SyncLite(world.shared, world.lite, "me", {"dead"})
        store.one(lite_subscriptions.sync, wish)
        for each in store.receive(group, topic, 32, client_id="me"):
            store.forward(group, each)
        redrive_all(store, group, f"in-order-{group.group_id}")
        store.ack(group, *store.receive(group, topic, 32, client_id="me"))


@act
def purge_dead_letters(store: TouredStore, world: World) -> None:
    die(store, world.group, world.topic, 8)
    ids = letter_ids(store, world.group)
    store.one(dead_letters_purge.purge_letters, PurgeLetters(world.group, [*ids[:3], *ids[-3:]]))


@act
def reset_progress(store: TouredStore, world: World) -> None:
    for to in (Edge.BEGINNING, Edge.END, 5):
        store.one(reset.reset, reset_of(world.urgent_group, world.urgent, to))
    store.one(reset.reset, reset_of(world.pulling, world.topic, 1, 0))
    store.one(reset.reset, reset_of(world.shared, world.lite, Edge.END))


@act
def skip_messages(store: TouredStore, world: World) -> None:
    """New ones, of a message group and of none, those that are held, and those that were given back."""
    popping = store.group("skipping", meets=[world.topic], consume_from=ConsumeFrom.LATEST)
    pulling = pull_group(store, "skipping-whole-queues", consume_from=ConsumeFrom.LATEST)
    store.meet(pulling, world.topic, Mode.PULL)
    sent = store.send(world.topic, in_order("skipped", 3)) + store.send(world.topic, 4)
    for group in (popping, pulling):
        _skip(store, world, group, sent[0], sent[3])
    held = store.receive(popping, world.topic, 200)
    _skip(store, world, popping, sent[1], sent[4], force=True)
    for each in held:
        if each.stored.message.message_id in {sent[2].message_id, sent[5].message_id}:
            store.change(popping, each, 0, give_back=True)
    _skip(store, world, popping, sent[2], sent[5])


def _skip(store: TouredStore, world: World, group: Group, *several: SendResult, force: bool = False) -> None:
    for each in several:
        assert each.queue_number is not None and each.offset is not None
        key = message_key(world.topic.queues[each.queue_number].queue_id, each.offset)
        store.do(progress_skip.skip, Skip(group, world.topic.topic_id, key, force))


@act
def clone_progress(store: TouredStore, world: World) -> None:
    store.one(clone.clone, Clone(world.group, store.group("clone"), [world.topic]))


@act
def pause_and_resume(store: TouredStore, world: World) -> None:
    for paused_by in ("ops", None):
        store.one(pause.set_pause, SetPause(world.group, [], None, paused_by))
        store.one(pause.set_pause, SetPause(world.group, [world.topic], None, paused_by))
        store.one(pause.set_pause, SetPause(world.group, [world.topic], "m1", paused_by))


@act
def unsubscribe_from_a_topic(store: TouredStore, world: World) -> None:
    for name, topic in (("leaving", world.topic), ("leaving-lite", world.lite)):
        group = store.group(name, meets=[topic])
        store.receive(group, topic, 8)
        store.one(unsubscribe.unsubscribe, Unsubscribe(group, topic, ends_holds=True))


@act
def expire_lite_topics(store: TouredStore, world: World) -> None:
    found = lite_topics.expiring(store.conn, store.now_ms + 10 * HOUR)
    store.one(lite_expire.expire, ExpireLite(found))


@act
def keep_charts(store: TouredStore, world: World) -> None:
    of_group, of_topic = Owner(ChartKind.GROUP, world.group.group_id), Owner(ChartKind.TOPIC, world.topic.topic_id)
    counts = dict.fromkeys((of_group, of_topic), ChartCounts(9, 5, 1, 2, 1, 60_000))
    store.one(points.write, WritePoints(store.now_ms, counts, dict.fromkeys(counts, Delays(2, 40, 25))))


@act
def tell_alerts(store: TouredStore, _world: World) -> None:
    alert = Alert(AlertKind.DEAD_LETTERS, "", "billing", "1 dead letter of billing.", "Look at the reasons.")
    store.one(told.record, RecordAlerts([alert], []))
    for failure in ("answered 500", "", ""):
        if (event := told.next_event(store.conn)) is not None:
            store.one(told.record_told, RecordTold(event, failure))
        store.one(told.record, RecordAlerts([], [alert.key]))


@act
def import_messages(store: TouredStore, world: World) -> None:
    """Of another broker: new ones, and a second time; for a group that pulls; and dead letters."""
    batch = messages_of(2, keys=("k",))
    for group in (world.group, world.pulling):
        request = Import(group, world.topic, [Imported(each, 1) for each in batch])
        store.one(imports.import_messages, request)
        store.do(imports.import_messages, request, careful=True)
    letters = [ImportedLetter(each, world.topic.topic_id, 3, "no", store.now_ms) for each in batch]
    dead = ImportDead(world.group, world.topic, letters)
    store.one(imports.import_dead_letters, dead)
    store.do(imports.import_dead_letters, dead, careful=True)
    store.ack(world.group, *store.receive(world.group, world.topic))


@act
def record_mirrors(store: TouredStore, _world: World) -> None:
    """Claimed, reported, refused to another process, and forgotten."""
    facts = MirrorFacts("m", "old:1", "new:1", "", "flights", "", "one", "ship", MirrorState.RUNNING)
    for claim in (True, False):
        store.one(records.write, ReportMirror(facts, 30 * SECOND, claim))
    store.do(records.write, ReportMirror(facts._replace(owner="two"), 30 * SECOND, claim=True))
    records.listed(store.conn)
    store.one(records.write, ReportMirror(facts._replace(state=MirrorState.DONE), 30 * SECOND, claim=False))
    store.one(records.write, ForgetMirror("m"))


@act
def repair_queues(store: TouredStore, _world: World) -> None:
    """What finds rows to repair is in `database.invariants`, which may name every table."""
    driver: Any = store.conn.connection.driver_connection
    driver.execute(f"UPDATE queue SET min_offset = 9 WHERE queue_id = {store.topic('damaged').queues[0].queue_id}")
    page = first_page(StuckIn.QUEUES, 500)
    with store.database.read(by_index=True) as conn:
        broken, _ = broken_in_page(conn, StuckIn.QUEUES, page, Moments(store.now_ms, store.now_ms), with_late=True)
    for each in broken:
        store.one(repair.repair, RepairRow(each))


@act
def remove_what_is_old(store: TouredStore, world: World) -> None:
    """Messages, history and idempotency keys."""
    from_queue = 0
    for _ in range(3):
        from_queue = store.one(retention.retain, Retain(store.now_ms, from_queue)).next_queue
    store.now_ms += 48 * HOUR
    store.one(repeats.expire, Expire())


@act
def remove_what_is_deleted(store: TouredStore, world: World) -> None:
    for topic in (world.lite, world.urgent):
        store.one(topics.delete_topic, DeleteTopic(topic.name))
    for group in (world.group, world.pulling):
        store.one(groups.delete_group, DeleteGroup(group.name))
    store.purge()
