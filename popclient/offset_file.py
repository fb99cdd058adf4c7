"""The classic file of offsets, as JSON: {"offsetTable": {"topic@group": {"0": 103}}}.

Our own consumers write beside it which topic of that name the offsets belong to: {"generations": {"topic@group": 7}}.

An offset is the next one to consume. Classic writers leave the queue ids, which are integers, without quotes; that is
read too. A new file is written beside the old one, which stays as `.bak`; so after a crash of the writer there is the
new one or the old one, and a torn file is never read as an empty one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

# By "topic@group": queue id to the next offset.
OffsetTable: TypeAlias = dict[str, dict[int, int]]
# By "topic@group": the generation of the topic.
Generations: TypeAlias = dict[str, int]

_TABLE: Final = "offsetTable"
_DIGITS_MAX: Final = 19
_GENERATIONS: Final = "generations"
_SHAPE: Final = f'{{"{_TABLE}": {{"topic@group": {{"0": 103}}}}}}'
# A text is skipped as a whole, so that what looks like a key in it stays as it is.
_BARE_KEY: Final = re.compile(r'"(?:[^"\\]|\\.)*"|(?<=[{,])(\s*)(\d+)(?=\s*:)')


class OffsetFileTorn(ValueError):
    """The text is no file of offsets; the sentence names the place."""


def table_key(topic: str, group: str) -> str:
    return f"{topic}@{group}"


def split_table_key(key: str) -> tuple[str, str]:
    """Topic and group. Raises OffsetFileTorn for a key that names not both."""
    topic, at, group = key.partition("@")
    if not (topic and at and group):
        raise OffsetFileTorn(f"{key!r} in {_TABLE} does not name its queues' topic and group; write topic@group")
    return topic, group


# ---- The text ----


def dump_offsets(table: Mapping[str, Mapping[int, int]], generations: Mapping[str, int] | None = None) -> str:
    """The file's text: keys sorted, so that equal tables give equal texts."""
    plain = {key: {str(queue_id): of_key[queue_id] for queue_id in sorted(of_key)} for key, of_key in table.items()}
    text: dict[str, Any] = {_TABLE: dict(sorted(plain.items()))}
    if generations:
        text[_GENERATIONS] = dict(sorted(generations.items()))
    return json.dumps(text, indent=2) + "\n"


def parse_offsets(text: str) -> OffsetTable:
    """The table in a file's text; what else stands beside it is passed over. Raises OffsetFileTorn."""
    table = _parsed(text)
    if not isinstance(table, dict) or not isinstance(table.get(_TABLE), dict):
        raise OffsetFileTorn(f"the text has no {_TABLE}; it must be {_SHAPE}")
    return {key: _offsets_of(key, of_key) for key, of_key in table[_TABLE].items()}


def parse_with_generations(text: str) -> tuple[OffsetTable, Generations]:
    """The same, and the generations as far as the text has some."""
    found = _parsed(text)
    named = found.get(_GENERATIONS) if isinstance(found, dict) else None
    known = named.items() if isinstance(named, dict) else ()
    return parse_offsets(text), {key: each for key, each in known if type(each) is int and each > 0}


def _parsed(text: str) -> Any:
    quoted, starts = _with_quoted_keys(text)
    try:
        return json.loads(quoted, object_pairs_hook=_without_doubles)
    except RecursionError:
        raise OffsetFileTorn(f"lists or objects stand in each other too deeply; it must be {_SHAPE}") from None
    except json.JSONDecodeError as torn:
        position = torn.pos - 2 * sum(start < torn.pos for start in starts)
        line, column = text.count("\n", 0, position) + 1, position - text.rfind("\n", 0, position)
        raise OffsetFileTorn(
            f"{torn.msg} at line {line}, column {column} (character {position} of {len(text)}); it must be {_SHAPE}"
        ) from None
    except OffsetFileTorn:
        raise
    except ValueError as failure:  # a number of thousands of digits
        raise OffsetFileTorn(f"{failure}; it must be {_SHAPE}") from None


def _with_quoted_keys(text: str) -> tuple[str, list[int]]:
    """The text as strict JSON, and where in it keys have gained their quotes."""
    pieces: list[str] = []
    starts: list[int] = []
    end = length = 0
    for found in _BARE_KEY.finditer(text):
        if found[2] is None:
            continue
        before = text[end : found.start(2)]
        starts.append(length + len(before))
        pieces += [before, f'"{found[2]}"']
        length += len(before) + len(found[2]) + 2
        end = found.end()
    return "".join([*pieces, text[end:]]), starts


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise OffsetFileTorn(f"{key!r} stands twice in one object; delete the wrong one")
        found[key] = value
    return found


def _offsets_of(key: str, of_key: Any) -> dict[int, int]:
    split_table_key(key)
    if not isinstance(of_key, dict):
        raise OffsetFileTorn(f"{key!r} has {of_key!r} for its queues; it must be {_SHAPE}")
    found: dict[int, int] = {}
    for name, offset in of_key.items():
        queue_id = _queue_id(key, name)
        _once(key, queue_id, found)
        found[queue_id] = _offset(key, name, offset)
    return found


def _once(key: str, queue_id: int, found: Mapping[int, int]) -> None:
    """Raises OffsetFileTorn for a queue that is there already, as 1 and as 01."""
    if queue_id in found:
        raise OffsetFileTorn(f"{key!r} has queue {queue_id} twice, with and without zeros before it; delete one")


def _queue_id(key: str, queue_id: str) -> int:
    if not (queue_id.isascii() and queue_id.isdigit() and len(queue_id) <= _DIGITS_MAX):
        raise OffsetFileTorn(f"{key!r} has a queue {queue_id[:64]!r}; a queue id is a whole number from 0")
    return int(queue_id)


def _offset(key: str, queue_id: str, offset: Any) -> int:
    if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
        raise OffsetFileTorn(f"{key!r} has offset {offset!r} in queue {queue_id}; it is a whole number from 0")
    return offset


# ---- The file ----


def backup_of(path: Path) -> Path:
    return path.with_name(path.name + ".bak")


def read_offset_file(path: Path) -> tuple[OffsetTable, Generations] | None:
    """Offsets and generations of the file, or if it is torn or missing of its `.bak`; None if there is neither.

    Raises OffsetFileTorn when something is there and none of it can be read: that is not the same as no progress.
    """
    torn: list[str] = []
    for candidate in (path, backup_of(path)):
        try:
            return parse_with_generations(candidate.read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except (OffsetFileTorn, UnicodeDecodeError) as failure:
            torn.append(f"{candidate}: {failure}")
    if torn:
        raise OffsetFileTorn(
            f"no offsets can be read ({'; '.join(torn)}); repair one of the files, or remove them to begin without"
            " progress"
        )
    return None


def write_offset_file(
    path: Path, table: Mapping[str, Mapping[int, int]], generations: Mapping[str, int] | None = None
) -> None:
    """Makes this the file's content, durable on return; the one before stays as `.bak`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    with fresh.open("w", encoding="utf-8") as file:
        file.write(dump_offsets(table, generations))
        file.flush()
        os.fsync(file.fileno())
    if _is_readable(path):  # a torn one must not take the place of a good backup
        path.replace(backup_of(path))
    fresh.replace(path)
    sync_folder(path.parent)


def _is_readable(path: Path) -> bool:
    with contextlib.suppress(OSError, OffsetFileTorn, UnicodeDecodeError):
        parse_offsets(path.read_text(encoding="utf-8"))
        return True
    return False


def sync_folder(folder: Path) -> None:
    """A rename is durable once the folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
