"""Progress: in memory, in a file, on a server, and in a store of the user's own."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from popclient import PopError, PreconditionFailed, Unreachable
from popclient._progress.local import LocalFileOffsetStore
from popclient._progress.remote import RemoteOffsetStore
from popclient._progress.start import ConsumeFromWhere, start_of
from popclient._progress.store import NO_OFFSET, OFFSET_ERROR, OffsetStore, ReadOffsetType
from popclient._queues.calls import Committed, QueueProgress
from popclient.message import MessageQueue
from popclient.offset_file import OffsetFileTorn, backup_of, write_offset_file

MEMORY = ReadOffsetType.READ_FROM_MEMORY
STORE = ReadOffsetType.READ_FROM_STORE
BOTH = ReadOffsetType.MEMORY_FIRST_THEN_STORE
T0, T1, U0 = MessageQueue("t", 0), MessageQueue("t", 1), MessageQueue("u", 0)


class Server:
    """The group's progress on a server, by the rules of its Legacy service."""

    def __init__(self) -> None:
        self.progress: dict[MessageQueue, QueueProgress] = {}
        self.commits: list[dict[MessageQueue, int]] = []
        self.is_down = False

    async def fetch(self, mqs: Collection[MessageQueue]) -> dict[MessageQueue, QueueProgress]:
        self._require_up()
        return {mq: self.progress.get(mq, QueueProgress(NO_OFFSET)) for mq in mqs}

    async def commit(
        self, offsets: Mapping[MessageQueue, QueueProgress], /, *, begin: bool = False
    ) -> dict[MessageQueue, Committed]:
        self._require_up()
        self.commits.append({mq: each.offset for mq, each in offsets.items()})
        asked = {mq: self.progress.get(mq, each) if begin else each for mq, each in offsets.items()}
        return {mq: self._committed(mq, each) for mq, each in asked.items()}

    def reset(self, mq: MessageQueue, offset: int) -> None:
        self.progress[mq] = QueueProgress(offset, self.progress.get(mq, QueueProgress(NO_OFFSET)).resets + 1)

    def _committed(self, mq: MessageQueue, asked: QueueProgress) -> Committed:
        stored = self.progress.get(mq, QueueProgress(NO_OFFSET))
        if asked.resets < stored.resets:
            return Committed(stored, PreconditionFailed("progress was reset"))
        self.progress[mq] = QueueProgress(max(asked.offset, stored.offset), stored.resets)
        return Committed(self.progress[mq], None)

    def _require_up(self) -> None:
        if self.is_down:
            raise Unreachable("nothing listens there")


class Kept(NamedTuple):
    """A store, another one over the same storage, as after a restart, and how to break the storage."""

    store: OffsetStore
    restarted: Callable[[], Awaitable[OffsetStore]]
    break_storage: Callable[[], None]


@pytest.fixture(params=["local", "remote"])
async def kept(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Kept]:
    opened: list[OffsetStore] = []
    server = Server()

    async def open_store() -> OffsetStore:
        for before in opened:
            await before.close()
        opened.append(local(tmp_path) if request.param == "local" else remote(server))
        await opened[-1].load()
        return opened[-1]

    def break_storage() -> None:
        server.is_down = True
        if request.param == "local":
            path = local(tmp_path).path
            path.write_text("torn")
            backup_of(path).write_text("torn too")

    yield Kept(await open_store(), open_store, break_storage)
    for store in opened:
        await store.close()


def local(home: Path, client_name: str = "me") -> LocalFileOffsetStore:
    return LocalFileOffsetStore(client_name, "g", home)


def remote(server: Server, on_reset: Callable[[MessageQueue], None] = lambda _: None) -> RemoteOffsetStore:
    return RemoteOffsetStore("g", server.fetch, server.commit, on_reset)


# ---- What all stores do ----


@pytest.mark.row("H4")
async def test_reading_looks_where_it_is_told_to(kept: Kept) -> None:
    store = kept.store
    assert [await store.read_offset(T0, each) for each in (MEMORY, STORE, BOTH)] == [NO_OFFSET] * 3
    store.update_offset(T0, 5, increase_only=False)
    await store.persist(T0)
    store.update_offset(T0, 8, increase_only=False)
    assert await store.read_offset(T0, MEMORY) == 8
    assert await store.read_offset(T0, BOTH) == 8
    assert await store.read_offset(T0, STORE) == 5
    assert await store.read_offset(T0, MEMORY) == 5, "what the store says is remembered"
    store.remove_offset(T0)
    assert await store.read_offset(T0, MEMORY) == NO_OFFSET
    assert await store.read_offset(T0, BOTH) == 5


@pytest.mark.row("H4")
async def test_a_store_that_fails_is_not_one_without_progress(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    store = kept.store
    store.update_offset(T0, 5, increase_only=False)
    await store.persist(T0)
    store.remove_offset(T0)
    kept.break_storage()
    with caplog.at_level(logging.INFO, "popclient"):
        for read_type in (STORE, BOTH):
            offset = await store.read_offset(T0, read_type)
            assert offset == OFFSET_ERROR
            assert all(start_of(where, "t", offset) is None for where in ConsumeFromWhere), "nothing begins at a guess"
    assert caplog.messages[0].startswith("offset of t:0 for group g is not known: ")
    assert await store.read_offset(T0, MEMORY) == NO_OFFSET


@pytest.mark.row("H2")
async def test_after_a_restart_it_goes_on_where_it_was(kept: Kept) -> None:
    kept.store.update_offset(T0, 103, increase_only=True)
    kept.store.update_offset(U0, 7, increase_only=True)
    await kept.store.persist_all([T0, U0])
    after = await kept.restarted()
    assert [await after.read_offset(mq, BOTH) for mq in (T0, T1, U0)] == [103, NO_OFFSET, 7]


async def test_an_offset_of_zero_is_progress(kept: Kept) -> None:
    """A queue that begins at 0 and one that has not begun are not the same: another start may be configured."""
    kept.store.update_offset(T0, 0, increase_only=True)
    await kept.store.persist(T0)
    after = await kept.restarted()
    assert [await after.read_offset(mq, BOTH) for mq in (T0, T1)] == [0, NO_OFFSET]


async def test_progress_only_increases_where_that_is_asked_for(kept: Kept) -> None:
    store = kept.store
    store.update_offset(T0, 5, increase_only=True)
    store.update_offset(T0, 3, increase_only=True)
    assert await store.read_offset(T0, MEMORY) == 5
    store.update_offset(T0, 3, increase_only=False)
    assert await store.read_offset(T0, MEMORY) == 3


async def test_a_frozen_offset_stays_until_it_is_removed(kept: Kept) -> None:
    store = kept.store
    store.update_offset(T0, 9, increase_only=True)
    store.freeze(T0, 4)
    store.update_offset(T0, 10, increase_only=True)
    store.update_offset(T0, 2, increase_only=False)
    assert await store.read_offset(T0, MEMORY) == 4
    store.freeze(T0, 6)
    assert await store.read_offset(T0, MEMORY) == 6
    store.remove_offset(T0)
    store.update_offset(T0, 1, increase_only=True)
    assert await store.read_offset(T0, MEMORY) == 1


async def test_what_is_not_owned_any_more_is_forgotten_and_not_written(kept: Kept) -> None:
    store = kept.store
    store.update_offset(T0, 5, increase_only=True)
    store.update_offset(T1, 6, increase_only=True)
    await store.persist_all([T0])
    assert store.clone_offset_table() == {T0: 5}
    assert await (await kept.restarted()).read_offset(T1, STORE) == NO_OFFSET


async def test_the_table_is_copied_by_topic_or_whole(kept: Kept) -> None:
    for mq, offset in ((T0, 1), (T1, 2), (U0, 3)):
        kept.store.update_offset(mq, offset, increase_only=True)
    copy = kept.store.clone_offset_table("t")
    assert copy == {T0: 1, T1: 2}
    copy[T0] = 99
    assert kept.store.clone_offset_table() == {T0: 1, T1: 2, U0: 3}


async def test_an_offset_may_go_past_memory_to_the_store(kept: Kept) -> None:
    await kept.store.update_consume_offset_to_broker(T0, 12, is_oneway=False)
    assert kept.store.clone_offset_table() == {}
    assert await kept.store.read_offset(T0, STORE) == 12


async def test_a_negative_offset_is_refused(kept: Kept) -> None:
    with pytest.raises(ValueError, match="offset -1 of t:0 is below 0"):
        kept.store.update_offset(T0, -1, increase_only=False)
    with pytest.raises(ValueError, match="offset -2 of t:0 is below 0"):
        kept.store.freeze(T0, -2)


# ---- The file ----


@pytest.mark.row("H2")
async def test_the_file_is_where_it_should_be_and_of_the_classic_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    store = LocalFileOffsetStore("worker-1", "billing")
    await store.load()
    store.update_offset(T0, 103, increase_only=True)
    await store.persist_all([T0])
    await store.close()
    path = tmp_path / ".popmq" / "offsets" / "worker-1" / "billing" / "offsets.json"
    assert json.loads(path.read_text()) == {"offsetTable": {"t@billing": {"0": 103}}}


@pytest.mark.row("H2")
async def test_a_torn_file_and_a_torn_backup_stop_the_start(tmp_path: Path) -> None:
    store = local(tmp_path)
    store.path.parent.mkdir(parents=True)
    store.path.write_text('{"offsetTable":')
    backup_of(store.path).write_text("")
    with pytest.raises(OffsetFileTorn, match="no offsets can be read"):
        await store.load()
    store.path.write_text('{"offsetTable":{"t@g":{"0":4}}}')  # repaired
    await store.load()
    assert await store.read_offset(T0, BOTH) == 4
    await store.close()


async def test_one_file_is_of_one_consumer_at_a_time(tmp_path: Path) -> None:
    first, second, other = local(tmp_path), local(tmp_path), local(tmp_path, "other")
    await first.load()
    with pytest.raises(PreconditionFailed, match=r"in use by another consumer named 'me' of group 'g'; give each"):
        await second.load()
    await other.load()
    await first.close()
    await second.load()
    for store in (second, other):
        await store.close()


async def test_a_file_that_was_given_up_is_not_written_any_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = local(tmp_path), local(tmp_path)
    await first.load()
    await first.close()
    await second.load()
    second.update_offset(T0, 9, increase_only=True)
    await second.persist(T0)
    first.update_offset(T0, 2, increase_only=True)
    with caplog.at_level(logging.WARNING, "popclient"):
        await first.persist_all([T0])
    assert caplog.messages[0].endswith("is not open; offsets are written between load and close")
    assert await second.read_offset(T0, STORE) == 9
    with pytest.raises(PreconditionFailed, match="is not open"):
        await first.update_consume_offset_to_broker(T0, 2, is_oneway=False)
    await second.close()


async def test_a_file_of_another_group_is_not_taken_for_ones_own(tmp_path: Path) -> None:
    store = local(tmp_path)
    write_offset_file(store.path, {"t@someone": {0: 4}})
    with pytest.raises(OffsetFileTorn, match="has offsets of group 'someone', but belongs to 'g'"):
        await store.load()


async def test_progress_of_queues_that_are_not_owned_now_stays_in_the_file(tmp_path: Path) -> None:
    before, after = local(tmp_path), local(tmp_path)
    await before.load()
    before.update_offset(U0, 7, increase_only=True)
    await before.persist(U0)
    await before.close()
    await after.load()
    after.update_offset(T0, 1, increase_only=True)
    await after.persist_all([T0])
    assert await after.read_offset(U0, STORE) == 7
    await after.close()


@pytest.mark.row("B9")
async def test_offsets_of_a_topic_that_was_made_anew_meanwhile_do_not_count(tmp_path: Path) -> None:
    before, after, last = local(tmp_path), local(tmp_path), local(tmp_path)
    await before.load()
    before.note_generation("t", 7)
    for mq in (T0, T1, U0):
        before.update_offset(mq, 5, increase_only=True)
    await before.persist_all([T0, T1, U0])
    await before.close()
    await after.load()
    assert [after.generation(mq) for mq in (T0, T1, U0)] == [7, 7, 0]
    assert await after.read_offset(T0, STORE) == 5
    after.note_generation("t", 7)
    assert await after.read_offset(T0, MEMORY) == 5, "it is the same topic"
    after.note_generation("t", 8)
    for where in (MEMORY, STORE, BOTH):
        assert [await after.read_offset(mq, where) for mq in (T0, T1, U0)] == [NO_OFFSET, NO_OFFSET, 5]
    after.update_offset(T0, 1, increase_only=True)
    await after.persist(T0)
    await after.close()
    await last.load()
    assert [last.generation(mq) for mq in (T0, U0)] == [8, 0]
    assert [await last.read_offset(mq, STORE) for mq in (T0, T1, U0)] == [1, NO_OFFSET, 5]
    await last.close()


async def test_a_disk_that_fails_is_told_and_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = local(tmp_path)
    await store.load()
    store.update_offset(T0, 1, increase_only=True)
    obstacle = store.path.with_name("offsets.json.new")
    obstacle.mkdir()
    with caplog.at_level(logging.WARNING, "popclient"):
        await store.persist_all([T0])
        await store.update_consume_offset_to_broker(T0, 1)
    assert [message.startswith("offsets of group g are not in ") for message in caplog.messages] == [True, True]
    with pytest.raises(OSError, match=r"offsets\.json\.new"):
        await store.update_consume_offset_to_broker(T0, 1, is_oneway=False)
    obstacle.rmdir()
    await store.persist_all([T0])
    assert await store.read_offset(T0, STORE) == 1
    await store.close()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0"])
def test_a_name_that_is_no_folder_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"client_name is .*; offsets are kept in a folder of that name"):
        LocalFileOffsetStore(name, "g")


# ---- The server ----


async def test_all_queues_travel_together_and_only_what_has_changed() -> None:
    server = Server()
    store = remote(server)
    store.update_offset(T0, 1, increase_only=True)
    store.update_offset(T1, 2, increase_only=True)
    await store.persist_all([T0, T1])
    store.update_offset(T1, 3, increase_only=True)
    await store.persist_all([T0, T1])
    await store.persist_all([T0, T1])
    assert server.commits == [{T0: 1, T1: 2}, {T1: 3}]


async def test_a_commit_that_failed_is_made_by_the_next_beat(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    store = remote(server)
    store.update_offset(T0, 5, increase_only=True)
    server.is_down = True
    with caplog.at_level(logging.INFO, "popclient"):
        await store.persist_all([T0])
        await store.update_consume_offset_to_broker(T0, 5)
    assert len(caplog.messages) == 2
    assert "progress of group g is not committed (t:0 at 5): nothing listens there" in caplog.messages
    with pytest.raises(Unreachable):
        await store.update_consume_offset_to_broker(T0, 5, is_oneway=False)
    server.is_down = False
    await store.persist_all([T0])
    assert server.progress[T0].offset == 5


async def test_a_reset_is_not_undone_by_who_is_online() -> None:
    server, told = Server(), list[MessageQueue]()
    store = remote(server, told.append)
    server.progress[T0] = QueueProgress(50)
    assert await store.read_offset(T0, STORE) == 50
    store.update_offset(T0, 60, increase_only=True)
    server.reset(T0, 10)
    await store.persist_all([T0])
    assert server.progress[T0] == QueueProgress(10, 1)
    assert told == [T0]
    assert store.clone_offset_table() == {}, "what was reckoned from before counts no more"
    assert await store.read_offset(T0, BOTH) == 10
    assert store.resets(T0) == 1
    store.update_offset(T0, 12, increase_only=True)
    await store.persist(T0)
    assert server.progress[T0] == QueueProgress(12, 1)
    assert told == [T0]


async def test_a_commit_under_way_when_the_reset_was_read_changes_nothing_of_it() -> None:
    server, told = Server(), list[MessageQueue]()

    async def overtaken(
        offsets: Mapping[MessageQueue, QueueProgress], /, *, begin: bool = False
    ) -> Mapping[MessageQueue, Committed]:
        server.reset(T0, 10)
        assert await store.read_offset(T0, STORE) == 10
        return await server.commit(offsets)

    store = RemoteOffsetStore("g", server.fetch, overtaken, told.append)
    store.update_offset(T0, 60, increase_only=True)
    await store.persist(T0)
    assert (store.clone_offset_table(), store.resets(T0), told) == ({T0: 10}, 1, [])


@pytest.mark.row("I1")
async def test_of_two_members_that_begin_a_queue_the_first_one_counts() -> None:
    server = Server()
    first, second = remote(server), remote(server)
    assert [await first.begin(T0, 10), await second.begin(T0, 12)] == [10, 10]
    assert server.progress[T0].offset == 10
    assert await second.read_offset(T0, STORE) == 10


async def test_a_refusal_that_is_no_reset_is_told() -> None:
    class Refusing(Server):
        def _committed(self, mq: MessageQueue, asked: QueueProgress) -> Committed:
            return Committed(asked, PopError("the group is of mode POP"))

    store = remote(Refusing())
    with pytest.raises(PopError, match="mode POP"):
        await store.update_consume_offset_to_broker(T0, 5, is_oneway=False)
    with pytest.raises(PopError, match="mode POP"):
        await store.begin(T0, 5)


# ---- A store of the user's own ----


class InADict(OffsetStore):
    """The least that a store must do."""

    def __init__(self) -> None:
        self.memory: dict[MessageQueue, int] = {}
        self.stored: dict[MessageQueue, int] = {}

    async def load(self) -> None:
        self.memory = dict(self.stored)

    def update_offset(self, mq: MessageQueue, offset: int, increase_only: bool) -> None:
        self.memory[mq] = max(offset, self.memory.get(mq, offset)) if increase_only else offset

    async def read_offset(self, mq: MessageQueue, read_type: ReadOffsetType) -> int:
        return (self.stored if read_type is STORE else {**self.stored, **self.memory}).get(mq, NO_OFFSET)

    async def persist_all(self, mqs: Collection[MessageQueue]) -> None:
        for mq in mqs:
            await self.persist(mq)

    async def persist(self, mq: MessageQueue) -> None:
        self.stored[mq] = self.memory[mq]

    def remove_offset(self, mq: MessageQueue) -> None:
        self.memory.pop(mq, None)

    def clone_offset_table(self, topic: str | None = None) -> dict[MessageQueue, int]:
        return {mq: offset for mq, offset in self.memory.items() if topic in (None, mq.topic)}

    async def update_consume_offset_to_broker(self, mq: MessageQueue, offset: int, is_oneway: bool = True) -> None:
        self.stored[mq] = offset


@pytest.mark.row("H1")
async def test_a_store_of_ones_own_needs_eight_methods_and_may_leave_two() -> None:
    store: OffsetStore = InADict()
    await store.load()
    store.update_offset(T0, 5, increase_only=True)
    store.freeze(T0, 4)
    await store.persist_all([T0])
    await store.close()
    assert await store.read_offset(T0, STORE) == 4


@pytest.mark.row("H1")
@pytest.mark.parametrize(
    "method",
    [
        "load",
        "update_offset",
        "read_offset",
        "persist_all",
        "persist",
        "remove_offset",
        "clone_offset_table",
        "update_consume_offset_to_broker",
    ],
)
def test_a_store_that_lacks_one_of_the_eight_is_none(method: str) -> None:
    methods = {name: value for name, value in vars(InADict).items() if name != method and not name.startswith("__")}
    lacking = type("Lacking", (OffsetStore,), methods)
    with pytest.raises(TypeError, match=f"abstract method '?{method}'?"):
        lacking()
