"""The journal's files: what is durable, what is dropped, what is refused."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")

import pyarrow as pa

from popclient.spark.journal import files
from popclient.spark.journal.folder import Journal, JournalFailed

Open = Callable[..., Journal]


def batch(*numbers: int) -> list[pa.RecordBatch]:
    columns = {
        "message_id": [f"id-{number}" for number in numbers],
        "topic": ["t"] * len(numbers),
        "body": [b"%d" % number for number in numbers],
    }
    return [pa.RecordBatch.from_pydict(columns)]


def contents(journal: Journal, start: int = 0) -> list[int]:
    """What the segments after `start` hold, as a stream reads it."""
    found = journal.between(max(start, journal.first - 1), journal.last)
    return [int(body) for each in found for body in files.read_columns(each.path, ["body"])["body"].to_pylist()]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Opens the same journal again and again, as a process does that was killed before."""
    journals: list[Journal] = []

    def open_it(dedupe_messages: int = 1_000, **options: Any) -> Journal:
        for before in journals:
            before.close()
        journals.append(Journal(tmp_path / "journal", dedupe_messages, **options))
        journals[-1].open(0)
        return journals[-1]

    yield open_it
    for each in journals:
        each.close()


def test_what_was_appended_is_there_after_a_crash(opened: Open) -> None:
    journal = opened()
    journal.append(batch(1, 2))
    journal.append(batch(3))
    journal = opened()
    assert (journal.first, journal.last, contents(journal)) == (1, 2, [1, 2, 3])
    assert [each.messages for each in journal.between(0, 2)] == [2, 1]


def test_what_comes_again_is_dropped_even_after_its_segment_was_removed_and_the_process_ended(opened: Open) -> None:
    journal = opened()
    journal.append(batch(1, 2))
    journal.append(batch(2, 3, 3))
    journal.remove(1)
    journal = opened()
    journal.append(batch(1, 2, 3, 4))
    journal.append(batch(1, 4))
    assert (journal.first, journal.last, contents(journal)) == (2, 3, [3, 4])


def test_an_empty_journal_goes_on_counting(opened: Open) -> None:
    journal = opened()
    for number in range(3):
        journal.append(batch(number))
    journal.remove(3)
    journal = opened()
    assert (journal.first, journal.last) == (4, 3)
    journal.append(batch(9))
    assert (journal.first, journal.last) == (4, 4)


def test_the_window_forgets_what_is_older(opened: Open, tmp_path: Path) -> None:
    journal = opened(dedupe_messages=2)
    for number in range(6):
        journal.append(batch(number))
        journal.remove(number + 1)
    kept = sorted(path.name for path in (tmp_path / "journal").glob("*.ids"))
    assert kept == ["000000000005.ids", "000000000006.ids"]
    journal.append(batch(0, 5))
    assert contents(journal) == [0]
    nothing_known = opened(dedupe_messages=0)
    nothing_known.append(batch(5, 5))
    assert contents(nothing_known, 7) == [5, 5]


def test_what_spark_has_not_read_is_forgotten_too(opened: Open, tmp_path: Path) -> None:
    """A backlog may be a hundred times the window."""
    journal = opened(dedupe_messages=3)
    for number in range(0, 20, 2):
        journal.append(batch(number, number + 1))
        assert len(journal._seen._known) <= 3 + 1
    journal = opened(dedupe_messages=3)
    assert journal._seen._known == {"t/id-16", "t/id-17", "t/id-18", "t/id-19"}
    journal.append(batch(15, 16, 19))
    assert contents(journal, 10) == [15]
    journal.remove(10)
    journal = opened(dedupe_messages=3)
    journal.append(batch(15, 19))
    assert (contents(journal), journal.last) == ([15], 11)
    journal.remove(11)
    assert [path.name for path in (tmp_path / "journal").glob("*.ids")]


def test_a_torn_segment_never_was(opened: Open, tmp_path: Path) -> None:
    journal = opened()
    journal.append(batch(1))
    (tmp_path / "journal" / (files.name_of(2, 1) + ".tmp")).write_bytes(b"half of")
    journal = opened()
    assert (journal.last, contents(journal)) == (1, [1])
    assert not list((tmp_path / "journal").glob("*.tmp"))


def test_a_crash_between_the_ids_and_the_removal(opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = opened()
    journal.append(batch(1))
    journal.append(batch(2))
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "unlink", _interrupted)
        journal.remove(1)
    assert len(list((tmp_path / "journal").glob("*.arrow"))) == 2
    journal = opened()
    journal.append(batch(1))
    assert (journal.first, journal.last, contents(journal)) == (2, 2, [2])
    assert len(list((tmp_path / "journal").glob("*.arrow"))) == 1


def _interrupted(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_many_share_one_segment(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one is being written the others wait together."""
    journal = opened()
    writing, go_on, write = threading.Event(), threading.Event(), files.write

    def slow(*given: Any) -> files.Segment:
        writing.set()
        assert go_on.wait(60)
        return write(*given)

    monkeypatch.setattr(files, "write", slow)
    threads = [threading.Thread(target=journal.append, args=[batch(number)]) for number in range(10)]
    threads[0].start()
    assert writing.wait(60)
    for thread in threads[1:]:
        thread.start()
    while len(journal._waiting) < 9:
        threads[1].join(0.001)
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert [each.messages for each in journal.between(0, journal.last)] == [1, 9]


def test_a_segment_has_its_bound(opened: Open) -> None:
    journal = opened(segment_messages=2)
    journal.append(batch(*range(5)))
    assert [each.messages for each in journal.between(0, journal.last)] == [2, 2, 1]
    assert contents(journal) == [0, 1, 2, 3, 4]
    assert (journal.messages_after(1), journal.messages_after(3)) == (3, 0)


# ---- What goes wrong ----


def test_a_full_disk_acks_nothing_and_is_named(opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = opened()
    journal.append(batch(1))
    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", _full)
        with pytest.raises(JournalFailed) as failed:
            journal.append(batch(2))
    for word in (f"journalPath='{tmp_path}/journal'", "No space left on device", "not acked", "free disk space"):
        assert word in str(failed.value)
    with pytest.raises(JournalFailed):  # what may stand in the file is not known: only a new start tells
        journal.append(batch(3))
    assert (journal.last, journal.failure) == (1, failed.value)
    assert not list((tmp_path / "journal").glob("*.tmp"))  # it would keep the disk full
    journal = opened()
    journal.append(batch(2))
    assert contents(journal) == [1, 2]


def _full(_handle: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_whatever_fails_while_others_wait_acks_none_of_them(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = opened()
    with monkeypatch.context() as patched, pytest.raises(JournalFailed, match="cannot be written: TypeError"):
        patched.setattr(files, "write", _mistaken)
        journal.append(batch(1))
    with pytest.raises(JournalFailed):
        journal.append(batch(2))
    assert contents(opened()) == []


def _mistaken(*_: Any) -> None:
    raise TypeError("a mistake")


def test_a_new_folder_is_durable_with_its_parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(files, "sync_folder", synced.append)
    files.make_folder(tmp_path / "a" / "b" / "journal")
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]
    files.make_folder(tmp_path / "a" / "b" / "journal")
    assert len(synced) == 3


def test_a_folder_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JournalFailed, match=r"journalPath='.*/file/journal' cannot be opened: .*Not a directory"):
        Journal(tmp_path / "file" / "journal", 10).open(0)


def test_two_cannot_have_it(opened: Open, tmp_path: Path) -> None:
    first = opened()
    with pytest.raises(JournalFailed, match=r"in use by process \d+; give each query a journalPath of its own"):
        Journal(first.path, 10).open(0)
    first.close()
    assert opened().last == 0


def test_another_checkpoint_is_refused(opened: Open) -> None:
    journal = opened()
    for number in range(3):
        journal.append(batch(number))
    journal.remove(1)
    for seq in (1, 2, 3):
        journal.require(seq)
    with pytest.raises(JournalFailed, match=r"ends at segment 3, and the checkpoint has read up to 41: .*new check"):
        journal.require(41)
    with pytest.raises(JournalFailed, match="has segments 2 to 3, and the checkpoint asks for 1: "):
        journal.require(0)


def test_a_segment_that_somebody_removed_is_missed(opened: Open) -> None:
    journal = opened()
    for number in range(3):
        journal.append(batch(number))
    journal.between(1, 2)[0].path.unlink()
    with pytest.raises(JournalFailed, match="has no segment 2 of 3: its file was removed"):
        opened()


def test_a_segment_that_was_damaged_is_named(opened: Open) -> None:
    journal = opened()
    journal.append(batch(1))
    journal.between(0, 1)[0].path.write_bytes(b"something else")
    with pytest.raises(JournalFailed, match="cannot be opened"):
        opened()


# ---- The law ----

Step = tuple[str, list[int]]
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(st.integers(0, 30), min_size=1, max_size=8)),
        st.tuples(st.just("commit"), st.just([])),
        st.tuples(st.just("crash"), st.just([])),
    ),
    max_size=30,
)


@settings(max_examples=40)
@given(_STEPS)
def test_every_message_is_read_once_whatever_comes_again(
    tmp_path_factory: pytest.TempPathFactory, steps: Sequence[Step]
) -> None:
    """A stream that reads whole segments, and a window that forgets nothing: each message once, in its order."""
    folder = tmp_path_factory.mktemp("journal")
    journal = Journal(folder, 1_000, segment_messages=3)
    journal.open(0)
    offset, read, expected = 0, list[int](), list[int]()
    for what, numbers in steps:
        if what == "append":
            journal.append(batch(*numbers))
            expected += [number for number in dict.fromkeys(numbers) if number not in expected]
        elif what == "commit":
            read += contents(journal, offset)
            journal.remove(offset)
            offset = journal.last
        else:
            journal.close()
            journal = Journal(folder, 1_000, segment_messages=3)
            journal.open(0)
            journal.require(offset)
    assert read + contents(journal, offset) == expected
    journal.close()
