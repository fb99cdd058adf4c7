"""The classic file of offsets: its text, and that a torn one is never taken for an empty one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popclient.offset_file import (
    OffsetFileTorn,
    backup_of,
    dump_offsets,
    parse_offsets,
    parse_with_generations,
    read_offset_file,
    split_table_key,
    table_key,
    write_offset_file,
)

TABLE = {"t@g": {0: 103, 1: 7, 10: 0}, "%RETRY%g@g": {0: 2}}
KILLS = 8
QUEUES = 500
names = st.text(st.sampled_from("abc-_%019"), min_size=1, max_size=6)
tables = st.dictionaries(
    st.builds(table_key, names, names), st.dictionaries(st.integers(0, 20), st.integers(0, 2**63 - 1))
)


# ---- The text ----


def test_the_shape_is_the_classic_one() -> None:
    assert json.loads(dump_offsets(TABLE)) == {
        "offsetTable": {"%RETRY%g@g": {"0": 2}, "t@g": {"0": 103, "1": 7, "10": 0}}
    }


@given(tables)
def test_what_is_written_is_read(table: dict[str, dict[int, int]]) -> None:
    text = dump_offsets(table)
    assert parse_offsets(text) == table
    assert parse_offsets(re.sub(r'"(\d+)":', r"\1:", text)) == table


def test_keys_without_quotes_are_read_as_classic_writers_leave_them() -> None:
    text = '{\n\t"offsetTable":{"%RETRY%g@g":{0:2\n\t\t},"t@g":{0:103,1:7 , 10 :0\n\t\t}\n\t}\n}'
    assert parse_offsets(text) == TABLE


def test_what_stands_beside_the_table_is_passed_over() -> None:
    text = '{"dataVersion":{"counter":5,"note":"{1:2,"},"offsetTable":{"t@g":{0:103}},"groupTopicMap":{}}'
    assert parse_offsets(text) == {"t@g": {0: 103}}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", r"at line 1, column 1 \(character 0 of 0\)"),
        ("\0\0\0\0", r"at line 1, column 1 \("),
        ("\nx", r"at line 2, column 1 \(character 1 of 2\)"),
        ('{"offsetTable":{"t@g":{0:103,1:', r"at line 1, column 32 \(character 31 of 31\)"),
        ('{"offsetTable":\n{"t@g":{0:103,\n1:x}}}', r"at line 3, column 3 \(character 33 of 37\)"),
        ('{"offsetTable":{"t@g":{0:1,10:2,2:x,3:4}}}', r"at line 1, column 35 \(character 34 of 42\)"),
        ("[]", "the text has no offsetTable"),
        ("{}", "the text has no offsetTable"),
        ('{"offsetTable":[]}', "the text has no offsetTable"),
        ('{"offsetTable":{"t":{}}}', "'t' in offsetTable does not name its queues' topic and group"),
        ('{"offsetTable":{"t@g":5}}', "'t@g' has 5 for its queues"),
        ('{"offsetTable":{"t@g":{"x":5}}}', "'t@g' has a queue 'x'"),
        ('{"offsetTable":{"t@g":{0:-1}}}', "'t@g' has offset -1 in queue 0"),
        ('{"offsetTable":{"t@g":{0:1.5}}}', "'t@g' has offset 1.5 in queue 0"),
        ('{"offsetTable":{"t@g":{0:true}}}', "'t@g' has offset True in queue 0"),
        ('{"offsetTable":{"t@g":{0:1,0:2}}}', "'0' stands twice"),
        ('{"offsetTable":{"t@g":{"1":1,"01":2}}}', "'t@g' has queue 1 twice"),
        ('{"offsetTable":{"t@g":{00:5,0:5}}}', "'t@g' has queue 0 twice"),
    ],
)
def test_a_text_that_is_none_is_refused_with_its_place(text: str, sentence: str) -> None:
    with pytest.raises(OffsetFileTorn, match=sentence):
        parse_offsets(text)


@given(st.integers(0, len(dump_offsets(TABLE).rstrip()) - 1))
def test_no_torn_text_reads_as_something_else(length: int) -> None:
    with pytest.raises(OffsetFileTorn):
        parse_offsets(dump_offsets(TABLE)[:length])


def test_generations_stand_beside_the_table_by_topic_and_group() -> None:
    text = dump_offsets(TABLE, {"t@g": 7, "%RETRY%g@g": 9})
    assert json.loads(text)["generations"] == {"%RETRY%g@g": 9, "t@g": 7}
    assert parse_with_generations(text) == (TABLE, {"t@g": 7, "%RETRY%g@g": 9})
    assert dump_offsets(TABLE, {}) == dump_offsets(TABLE)


@pytest.mark.parametrize("named", ['["t@g"]', '{"t@g": "7"}', '{"t@g": true}', '{"t@g": 0}', '{"t@g": -1}'])
def test_what_is_no_generation_is_passed_over(named: str) -> None:
    assert parse_with_generations(f'{{"offsetTable":{{"t@g":{{0:103}}}},"generations":{named}}}') == (
        {"t@g": {0: 103}}, {},
    )  # fmt: skip


def test_keys_come_apart() -> None:
    assert split_table_key(table_key("t", "g")) == ("t", "g")


# ---- The file ----


def test_without_a_file_there_is_no_progress(tmp_path: Path) -> None:
    assert read_offset_file(tmp_path / "offsets.json") is None


def test_the_file_before_stays_as_backup(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "offsets.json"
    write_offset_file(path, {"t@g": {0: 1}})
    write_offset_file(path, {"t@g": {0: 2}})
    assert read_offset_file(path) == ({"t@g": {0: 2}}, {})
    assert read_offset_file(backup_of(path)) == ({"t@g": {0: 1}}, {})
    assert {each.name for each in path.parent.iterdir()} == {"offsets.json", "offsets.json.bak"}


@pytest.mark.row("H2")
@pytest.mark.parametrize("damage", [b"", b'{"offsetTable":{"t@g":{"0":', b"\xff\xfe", b"\0" * 64, None])
def test_of_a_torn_or_missing_file_the_backup_speaks(tmp_path: Path, damage: bytes | None) -> None:
    path = tmp_path / "offsets.json"
    write_offset_file(path, {"t@g": {0: 1}})
    write_offset_file(path, {"t@g": {0: 2}})
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    assert read_offset_file(path) == ({"t@g": {0: 1}}, {})


@pytest.mark.row("H2")
@pytest.mark.parametrize("is_first_missing", [False, True])
def test_when_nothing_can_be_read_nothing_is_made_up(tmp_path: Path, is_first_missing: bool) -> None:
    path = tmp_path / "offsets.json"
    backup_of(path).write_text('{"offsetTable":')
    if not is_first_missing:
        path.write_text("")
    with pytest.raises(OffsetFileTorn, match=r"no offsets can be read .*json\.bak: .*; repair one of the files"):
        read_offset_file(path)


def test_the_file_and_its_backup_keep_the_generations(tmp_path: Path) -> None:
    """Without them, offsets would count for a topic that was deleted and created again."""
    path = tmp_path / "offsets.json"
    write_offset_file(path, {"t@g": {0: 1}}, {"t@g": 7})
    write_offset_file(path, {"t@g": {0: 2}}, {"t@g": 8})
    assert read_offset_file(path) == ({"t@g": {0: 2}}, {"t@g": 8})
    path.unlink()
    assert read_offset_file(path) == ({"t@g": {0: 1}}, {"t@g": 7})


@pytest.mark.parametrize("damage", [b"torn", b"\xff\xfe"])
def test_a_torn_file_never_takes_the_place_of_a_good_backup(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "offsets.json"
    write_offset_file(path, {"t@g": {0: 1}})
    write_offset_file(path, {"t@g": {0: 2}})
    path.write_bytes(damage)
    write_offset_file(path, {"t@g": {0: 3}})
    assert read_offset_file(path) == ({"t@g": {0: 3}}, {})
    assert read_offset_file(backup_of(path)) == ({"t@g": {0: 1}}, {})


@pytest.mark.row("H2")
def test_what_is_written_is_on_disk_before_it_takes_the_files_place_and_its_name_is_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "offsets.json"
    write_offset_file(path, {"t@g": {0: 1}})
    synced: list[tuple[str, str]] = []
    fsync = os.fsync

    def noted(handle: int) -> None:
        fsync(handle)
        (what,) = [each for each in (tmp_path, *tmp_path.iterdir()) if os.path.samestat(os.fstat(handle), each.stat())]
        synced.append(("folder" if what == tmp_path else what.read_text(), path.read_text()))

    monkeypatch.setattr(os, "fsync", noted)
    old, new = dump_offsets({"t@g": {0: 1}}), dump_offsets({"t@g": {0: 2}})
    write_offset_file(path, {"t@g": {0: 2}})
    assert synced == [(new, old), ("folder", new)]


WRITER = """
import sys
from pathlib import Path
from popclient.offset_file import read_offset_file, write_offset_file
path, QUEUES = Path(sys.argv[1]), int(sys.argv[2])
found = read_offset_file(path)
offset = found[0]["t@g"][0] if found else 0
while True:
    offset += 1
    write_offset_file(path, {"t@g": {queue_id: offset for queue_id in range(QUEUES)}})
    print(offset, flush=True)
"""


@pytest.mark.row("H2")
def test_a_writer_that_is_killed_leaves_the_old_table_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    for kill in range(KILLS):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(QUEUES)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        with writer.stdout:
            durable = [int(writer.stdout.readline()) for _ in range(3 + kill)][-1]
            writer.send_signal(signal.SIGKILL)
            durable = max([durable, *map(int, writer.stdout.read().split())])
        writer.wait()
        found = read_offset_file(path)
        assert found is not None
        assert len(found[0]["t@g"]) == QUEUES
        (offset,) = set(found[0]["t@g"].values())  # of one table, not of two halves
        assert offset in (durable, durable + 1)
