"""`popmq dlq export`: dead letters as a file of Parquet or of one JSON object per line, with the columns Spark sees."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from popclient.admin import DeadLetter
from popclient.cli import UsageError
from popclient.cli.dlq_files import JsonLines, Output, Parquet
from popclient.cli.output import say
from popclient.cli.selection import admin_of, selection_of
from popclient.cli.telling import Telling
from popclient.errors import PopError

JSON: Final = ".jsonl"
_OUTPUTS: dict[str, type[Output]] = {".parquet": Parquet, JSON: JsonLines}


def export(arguments: Namespace) -> int:
    """Page by page, under another name until all of it is written: a file that has the name is whole."""
    to: Path = arguments.to
    kind = _OUTPUTS.get(to.suffix)
    if kind is None:
        raise UsageError(f"--to {to} ends in neither {' nor '.join(_OUTPUTS)}; name the file by what it is to hold")
    if kind is Parquet and find_spec("pyarrow") is None:
        raise UsageError(f"{to} needs pyarrow, which is not installed: pip install pyarrow, or name a {JSON} file")
    _require_a_place(arguments)
    part = to.with_name(f"{to.name}.part")
    with admin_of(arguments) as admin:
        letters = admin.dead_letters(selection_of(arguments))
        try:
            count = _write(kind, part, letters)
            _require_a_place(arguments)
            part.replace(to)
        except OSError as error:
            raise PopError(f"{to} cannot be written: {error.strerror or error}") from error
        finally:
            part.unlink(missing_ok=True)
    document = {"group": arguments.group, "file": str(to), "exported": count}
    return say(arguments, document, [f"wrote {count} dead letters to {to}"])


def _require_a_place(arguments: Namespace) -> None:
    to: Path = arguments.to
    if to.exists() and not arguments.force:
        raise UsageError(f"{to} is there already; write in its place with --force, or choose another name")
    if not to.parent.is_dir():
        raise UsageError(f"{to.parent} is no directory; make it, or choose another place")


def _write(kind: type[Output], part: Path, letters: Iterable[DeadLetter]) -> int:
    telling, count = Telling(), 0
    with kind(part) as output:
        for letter in letters:
            output.add(letter)
            count += 1
            telling.progress(f"{count} dead letters written")
    return count
