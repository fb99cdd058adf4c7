"""`popmq dlq export`. A file is complete and durable when its context ends without an error."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from popclient.admin import DeadLetter
from popclient.cli.arguments import UsageError
from popclient.cli.dead_letters.selection import admin_of, selection_of
from popclient.cli.output import ProgressLog, body_document, body_of, report, utc
from popclient.errors import PopError
from popclient.message import MessageView

# The rows and bodies that are kept in memory before they are written: a row group of Parquet.
ROWS_HELD: Final = 10_000
BYTES_HELD: Final = 32 * 1024 * 1024


Add = Callable[[DeadLetter], None]


@contextmanager
def json_lines(path: Path) -> Iterator[Add]:
    """One JSON object per line. Times are ISO 8601 in UTC; a body that is no text is in `body_base64`."""
    with path.open("w", encoding="utf-8") as file:

        def add(letter: DeadLetter) -> None:
            row = row_of(letter)
            times = {name: utc(value) for name, value in row.items() if name.endswith("_timestamp")}
            file.write(json.dumps({**row, **times, **body_document(row["body"])}, ensure_ascii=False) + "\n")

        yield add
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def parquet(path: Path) -> Iterator[Add]:
    """The columns and types of `spark.read.format("popmq")`."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    text, time = pa.string(), pa.timestamp("us", tz="UTC")
    schema = pa.schema(
        [
            ("message_id", text),
            ("topic", text),
            ("consumer_group", text),
            ("tag", text),
            ("keys", pa.list_(text)),
            ("properties", pa.map_(text, text)),
            ("message_group", text),
            ("message_type", text),
            ("queue_id", pa.int32()),
            ("queue_offset", pa.int64()),
            ("body", pa.binary()),
            ("born_timestamp", time),
            ("store_timestamp", time),
            ("dead_timestamp", time),
            ("delivery_attempt", pa.int32()),
            ("reason", text),
            ("redrive_state", text),
            ("plan_id", text),
            ("id", pa.int64()),
        ]
    )
    rows: list[dict[str, Any]] = []
    bytes_held = 0
    with ParquetWriter(path, schema) as writer:

        def flush() -> None:
            nonlocal bytes_held
            if rows:
                writer.write_table(pa.Table.from_pylist(rows, schema=schema))
                rows.clear()
                bytes_held = 0

        def add(letter: DeadLetter) -> None:
            nonlocal bytes_held
            row = row_of(letter)
            rows.append({**row, "properties": list(row["properties"].items())})
            bytes_held += len(row["body"] or b"")
            if len(rows) >= ROWS_HELD or bytes_held >= BYTES_HELD:
                flush()

        yield add
        flush()
    with path.open("rb") as written:
        os.fsync(written.fileno())


def row_of(letter: DeadLetter, unpack: Callable[[MessageView], bytes | None] = body_of) -> dict[str, Any]:
    """The columns of a dead letter by name; a body that cannot be decompressed is as it is stored."""
    message = letter.message
    body = unpack(message) if message else None
    return {
        "message_id": letter.origin_message_id,
        "topic": letter.topic or None,
        "consumer_group": letter.group,
        "tag": message.tag if message else None,
        "keys": list(message.keys) if message else [],
        "properties": message.properties if message else {},
        "message_group": message.message_group if message else None,
        "message_type": message.message_type if message else None,
        "queue_id": letter.queue_id,
        "queue_offset": letter.queue_offset,
        "body": message.stored_body if message and body is None else body,
        "born_timestamp": message.born_timestamp if message else None,
        "store_timestamp": message.store_timestamp if message else None,
        "dead_timestamp": letter.dead_at,
        "delivery_attempt": letter.delivery_attempt,
        "reason": letter.reason,
        "redrive_state": letter.redrive_state or None,
        "plan_id": letter.plan_id or None,
        "id": letter.id,
    }


JSON: Final = ".jsonl"
Output = Callable[[Path], AbstractContextManager[Add]]
_OUTPUTS: dict[str, Output] = {".parquet": parquet, JSON: json_lines}


def export(arguments: Namespace) -> int:
    """Page by page, into a file of another name that is renamed at the end: a file of this name is complete."""
    to: Path = arguments.to
    kind = _OUTPUTS.get(to.suffix)
    if kind is None:
        raise UsageError(f"--to {to} ends in neither {' nor '.join(_OUTPUTS)}; the ending chooses the format")
    if kind is parquet and find_spec("pyarrow") is None:
        raise UsageError(f"{to} needs pyarrow, which is not installed: pip install pyarrow, or name a {JSON} file")
    _require_free_name(arguments)
    part = to.with_name(f"{to.name}.part")
    with admin_of(arguments) as admin:
        letters = admin.dead_letters(selection_of(arguments))
        try:
            count = _write(kind, part, letters)
            _require_free_name(arguments)
            part.replace(to)
        except OSError as error:
            raise PopError(f"{to} cannot be written: {error.strerror or error}") from error
        finally:
            part.unlink(missing_ok=True)
    document = {"group": arguments.group, "file": str(to), "exported": count}
    return report(arguments, document, [f"wrote {count} dead letters to {to}"])


def _require_free_name(arguments: Namespace) -> None:
    to: Path = arguments.to
    if to.exists() and not arguments.force:
        raise UsageError(f"{to} exists already; overwrite it with --force, or choose another name")
    if not to.parent.is_dir():
        raise UsageError(f"{to.parent} is no directory; create it, or choose another one")


def _write(kind: Output, part: Path, letters: Iterable[DeadLetter]) -> int:
    progress_log, count = ProgressLog(), 0
    with kind(part) as add:
        for letter in letters:
            add(letter)
            count += 1
            progress_log.progress(f"{count} dead letters written")
    return count
