"""Power cuts: the model of a disk, the reading of recordings, and short runs; runs that sync too little are found."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from proof.history.scenes import Scene
from proof.power_cuts.disk import Change, Create, Disk, Keep, Remove, Rename, Resize, Sync, Write
from proof.power_cuts.judging import Finding, judge_images, until
from proof.power_cuts.recording import SCENES, Durability, Plan, record
from proof.power_cuts.trace import read_trace
from tests.support.checker import Ack, Delivered, History, Outcome, Receive

CHANCE = random.Random(1)
needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


def disk_after(*changes: Change, **files: bytes) -> Disk:
    disk = Disk(files)
    for line, change in enumerate(changes):
        disk.apply(line, change)
    return disk


def images_of(disk: Disk, keep: Keep) -> list[dict[str, bytes]]:
    return [disk.image(keep, random.Random(seed)) for seed in range(60)]


class TestDisk:
    def test_what_was_synced_is_there(self) -> None:
        disk = disk_after(Create("a"), Write("a", 0, b"one"), Sync("a", 2), Write("a", 3, b"two"))
        assert disk.image(Keep.NOTHING, CHANCE) == {"a": b"one"}
        assert disk.image(Keep.ALL, CHANCE) == {"a": b"onetwo"}
        assert disk.waiting == 1

    def test_a_sync_covers_only_what_had_ended_before_it_began(self) -> None:
        disk = disk_after(Create("a"), Write("a", 0, b"one"), Write("a", 3, b"two"), Sync("a", 2))
        assert disk.image(Keep.NOTHING, CHANCE) == {"a": b"one"}

    def test_a_sync_of_one_file_says_nothing_of_another(self) -> None:
        disk = disk_after(Write("a", 0, b"1"), Write("b", 0, b"1"), Sync("a", 2), a=b"0", b=b"0")
        assert disk.image(Keep.NOTHING, CHANCE) == {"a": b"1", "b": b"0"}

    def test_later_writes_may_be_kept_without_earlier_ones(self) -> None:
        disk = disk_after(Write("a", 0, b"1"), Write("a", 1, b"2"), a=b"00")
        assert {image["a"] for image in images_of(disk, Keep.SOME)} == {b"00", b"10", b"02", b"12"}
        assert {image["a"] for image in images_of(disk, Keep.FIRST)} == {b"10", b"12"}

    def test_a_write_is_torn_between_sectors_and_never_inside_one(self) -> None:
        disk = disk_after(Write("a", 256, b"1" * 1_024), a=b"0" * 2_048)
        seen = {image["a"] for image in images_of(disk, Keep.TORN)}
        assert b"0" * 512 + b"1" * 512 + b"0" * 1_024 in seen
        bounds = (0, 256, 512, 1_024, 1_280, 2_048)
        for content in seen:
            parts = [content[begin:end] for begin, end in pairwise(bounds)]
            assert all(len(set(part)) == 1 for part in parts)

    def test_a_gap_is_zeros_and_a_file_can_shrink_and_grow(self) -> None:
        changes = (Write("a", 4, b"1"), Resize("a", 1), Resize("a", 3, grows=True), Resize("a", 2, grows=True))
        assert disk_after(*changes, a=b"00").image(Keep.ALL, CHANCE) == {"a": b"0\0\0"}

    def test_names_reach_the_disk_in_their_order(self) -> None:
        disk = disk_after(Create("new"), Write("new", 0, b"2"), Sync("new", 2), Rename("new", "a"), Remove("b"),
                          a=b"1", b=b"3")  # fmt: skip
        assert disk.image(Keep.NOTHING, CHANCE) == {"a": b"1", "b": b"3", "new": b"2"}
        assert disk.image(Keep.ALL, CHANCE) == {"a": b"2"}
        kept = {tuple(sorted(image.items())) for image in images_of(disk, Keep.SOME)}
        assert (("a", b"1"), ("new", b"2")) not in kept  # b is gone only after the renaming

    @pytest.mark.parametrize("synced", ["folder", "folder/to"])
    def test_a_sync_of_the_folder_or_the_file_brings_a_name_and_all_before(self, synced: str) -> None:
        changes: tuple[Change, ...] = (
            Remove("other/b"),
            Rename("folder/from", "folder/to"),
            Sync(synced, 2),
            Remove("folder/to"),
        )
        disk = Disk({"other/b": b"1", "folder/from": b"2"})
        for line, change in enumerate(changes):
            disk.apply(line, change)
        assert disk.image(Keep.NOTHING, CHANCE) == {"folder/to": b"2"}


def hexed(words: str) -> str:
    return "".join(f"\\x{ord(each):02x}" for each in words)


class TestTrace:
    def read(self, folder: Path, lines: Sequence[str], **sizes: int) -> list[Change]:
        trace = folder / "trace"
        trace.write_text("".join(f"{process} {line}\n" for process, _, line in (each.partition(" ") for each in lines)))
        return [event.change for event in read_trace(trace, Path("/d"), sizes)]

    def test_calls_become_changes(self, tmp_path: Path) -> None:
        a, b = hexed("/d/a"), hexed("/d/b")
        folder = hexed("/d")
        parts = ", ".join(f'{{iov_base="{hexed(each)}", iov_len=1}}' for each in "12")
        assert self.read(
            tmp_path,
            [
                f'1 1.5 openat(AT_FDCWD<{folder}>, "{a}", O_RDWR|O_CREAT, 0600) = 3<{a}>',
                f'1 1.6 write(3<{a}>, "{hexed("ab")}", 2) = 2',
                f'1 1.7 write(3<{a}>, "{hexed("cd")}", 2) = 1',
                f'1 1.8 pwrite64(3<{a}>, "{hexed("xy)")}", 3, 9) = 3',
                f"1 1.9 pwritev(3<{a}>, [{parts}], 2, 7) = 2",
                f"1 2.0 fdatasync(3<{a}>) = 0",
                f"1 2.1 ftruncate(3<{a}>, 5) = 0",
                f"1 2.2 fallocate(3<{a}>, 0, 5, 10) = 0",
                f'1 2.3 rename("{hexed("a")}", "{b}") = 0',
                f'1 2.4 unlink("{b}") = 0',
            ],
        ) == [
            Create("a"),
            Write("a", 0, b"ab"),
            Write("a", 2, b"c"),
            Write("a", 9, b"xy)"),
            Write("a", 7, b"12"),
            Sync("a", 5),
            Resize("a", 5),
            Resize("a", 15, grows=True),
            Rename("a", "b"),
            Remove("b"),
        ]  # fmt: skip

    def test_what_changes_nothing_here_is_left_out(self, tmp_path: Path) -> None:
        other, a, socket = hexed("/other/a"), hexed("/d/a"), hexed("socket:[1]")
        lines = [
            f'1 1.0 pwrite64(3<{other}>, "{hexed("1")}", 1, 0) = 1',
            f'1 1.1 write(4<{socket}>, "{hexed("1")}", 1) = 1',
            f"1 1.2 fsync(5<{a}>) = -1 EIO (Input/output error)",
            f'1 1.3 write(5<{a}>(deleted), "{hexed("1")}", 1) = 1',
            f'1 1.4 unlink("{hexed("/d/none")}") = -1 ENOENT (No such file or directory)',
            f'1 1.5 openat(AT_FDCWD<{hexed("/d")}>, "{a}", O_RDWR|O_CREAT, 0600) = 5<{a}>',
            "1 +++ exited with 0 +++",
        ]
        assert self.read(tmp_path, lines, a=3) == []

    def test_a_call_that_another_process_interrupts(self, tmp_path: Path) -> None:
        a = hexed("/d/a")
        lines = [
            f"1 1.0 fsync(3<{a}> <unfinished ...>",
            f'2 1.1 pwrite64(3<{a}>, "{hexed("1")}", 1, 0) = 1',
            "1 1.2 <... fsync resumed>) = 0",
        ]
        assert self.read(tmp_path, lines, a=3) == [Write("a", 0, b"1"), Sync("a", 0)]

    def test_what_is_added_to_a_file_is_written_at_its_end(self, tmp_path: Path) -> None:
        a = hexed("/d/a")
        lines = [
            f'1 1.0 openat(AT_FDCWD<{hexed("/d")}>, "{a}", O_WRONLY|O_APPEND) = 3<{a}>',
            f'1 1.1 write(3<{a}>, "{hexed("1")}", 1) = 1',
            f"1 1.2 lseek(3<{a}>, 1, SEEK_SET) = 1",
            f'1 1.3 write(3<{a}>, "{hexed("2")}", 1) = 1',
        ]
        assert self.read(tmp_path, lines, a=7) == [Write("a", 7, b"1"), Write("a", 1, b"2")]


def test_what_clients_knew_at_a_moment() -> None:
    receive = Receive(Outcome.OK, 1, 5, "g", 10, (Delivered("m", "", 1, "h"),))
    ack = Ack(Outcome.OK, 6, 7, "g", "m", "h")
    assert until(History([receive, ack]), 7).calls == [receive, ack]
    assert until(History([receive, ack]), 6.5).calls == [receive, Ack(Outcome.UNKNOWN, 6, 6.5, "g", "m", "h")]
    assert until(History([receive, ack]), 3).calls == [Receive(Outcome.UNKNOWN, 1, 3, "g", 10)]


async def found(plan: Plan, folder: Path, cuts: int, serve_every: int = 0) -> list[Finding]:
    await record(plan, folder)
    counts, findings = judge_images(folder, plan.seed, range(cuts), serve_every)
    assert counts["postgres_images" if plan.on_postgres else "images"] > cuts
    return findings


@needs_strace
@pytest.mark.timeout(540)
async def test_no_image_of_sqlite_breaks_a_promise(tmp_path: Path) -> None:
    assert await found(Plan(1, scene=Scene.PLAIN, calls=300), tmp_path, cuts=20) == []


@needs_strace
@pytest.mark.full
@pytest.mark.timeout(540)
@pytest.mark.parametrize("scene", [each for each in SCENES if each is not Scene.PLAIN])
async def test_no_image_of_another_scene_breaks_a_promise(scene: Scene, tmp_path: Path) -> None:
    assert await found(Plan(2, scene=scene, calls=200), tmp_path, cuts=20) == []


@needs_strace
@pytest.mark.full
@pytest.mark.timeout(540)
async def test_no_image_of_postgres_breaks_a_promise(tmp_path: Path) -> None:
    assert await found(Plan(3, on_postgres=True, scene=Scene.PLAIN, calls=200), tmp_path, cuts=4) == []


@needs_strace
@pytest.mark.timeout(540)
async def test_commits_that_are_not_synced_are_found(tmp_path: Path) -> None:
    findings = await found(Plan(1, scene=Scene.PLAIN, durability=Durability.RELAXED, calls=100), tmp_path, cuts=10)
    assert {"I1", "I5"} & {violation.invariant for finding in findings for violation in finding.violations}


@needs_strace
@pytest.mark.full
@pytest.mark.timeout(540)
@pytest.mark.parametrize(
    "durability, invariants", [(Durability.RELAXED, {"I1", "I5"}), (Durability.NONE, {"I1", "I13"})]
)
async def test_postgres_that_syncs_too_little_is_found(
    durability: Durability, invariants: set[str], tmp_path: Path
) -> None:
    plan = Plan(1, on_postgres=True, scene=Scene.PLAIN, durability=durability, calls=300)
    findings = await found(plan, tmp_path, cuts=6)
    assert invariants & {violation.invariant for finding in findings for violation in finding.violations}


@needs_strace
@pytest.mark.full
@pytest.mark.timeout(540)
async def test_a_file_that_is_never_synced_is_found(tmp_path: Path) -> None:
    findings = await found(Plan(1, scene=Scene.PLAIN, durability=Durability.NONE, calls=100), tmp_path, cuts=10)
    assert "I13" in {violation.invariant for finding in findings for violation in finding.violations}
