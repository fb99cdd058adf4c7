"""The command `popmq db copy`: its options, its progress, and its result in plain words or JSON."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any, Final, TextIO

from popserver.model.errors import PopError
from popserver.serve.settings import OK, REFUSED

_BEAT_S: Final = 0.2  # between two drawings of the bar
_LINE_BEAT_S: Final = 5.0  # between two lines, where there is no terminal
_WIDTH: Final = 24
_CLEAR: Final = "\r\x1b[K"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--from", dest="source_url", metavar="URL", required=True, help="the database to copy")
    parser.add_argument(
        "--to", dest="target_url", metavar="URL", required=True, help="an empty database, or a new file"
    )
    parser.add_argument("--dry-run", action="store_true", help="check both, show what would be copied; change nothing")
    parser.add_argument(
        "--restart", action="store_true", help="begin an unfinished copy anew: its rows in the target are dropped"
    )
    parser.set_defaults(run=copy)


def copy(arguments: argparse.Namespace) -> int:
    """Copy a database; prints the progress on stderr and the result on stdout."""
    from popserver.database.copying.copy import copy_database

    bar = CopyBar(sys.stderr, as_json=arguments.json)
    try:
        facts = copy_database(
            arguments.source_url,
            arguments.target_url,
            bar,
            restart=arguments.restart,
            dry_run=arguments.dry_run,
        )
    except PopError as error:
        bar.clear()
        print(f"popmq: {error.sentence}", file=sys.stderr)
        return REFUSED
    except BaseException:
        bar.clear()
        raise
    bar.clear()
    facts["seconds"] = round(bar.elapsed_s(), 1)
    print(json.dumps(facts) if arguments.json else "\n".join(_lines(facts)))
    return OK


class CopyBar:
    """Shows how far a copy is: a bar on a terminal, else a line from time to time; of JSON with `as_json`."""

    def __init__(self, stream: TextIO, *, as_json: bool) -> None:
        self._stream = stream
        self._as_json = as_json
        self._draws = not as_json and stream.isatty()
        self._begun_s = self._step_s = self._shown_s = time.perf_counter()
        self._name, self._done, self._total, self._before = "", 0, 0, 0

    def step(self, name: str, total: int = 0) -> None:
        self._step_s = time.perf_counter()
        self._name, self._done, self._total, self._before = name, 0, total, 0
        self._show()

    def advance(self, count: int, *, before: bool = False) -> None:
        self._done += count
        self._before += count if before else 0
        if time.perf_counter() - self._shown_s >= (_BEAT_S if self._draws else _LINE_BEAT_S):
            self._show()

    def elapsed_s(self) -> float:
        return time.perf_counter() - self._begun_s

    def clear(self) -> None:
        """Remove the bar from the terminal."""
        if self._draws:
            self._stream.write(_CLEAR)
            self._stream.flush()

    def _show(self) -> None:
        self._shown_s = time.perf_counter()
        if self._as_json:
            line = json.dumps({"step": self._name, "done": self._done, "total": self._total}) + "\n"
        else:
            line = f"{_CLEAR}{self._words()}" if self._draws else f"{self._words()}\n"
        self._stream.write(line)
        self._stream.flush()

    def _words(self) -> str:
        if not self._total:
            return f"{self._name} …"
        share = min(self._done / self._total, 1.0)
        full = round(share * _WIDTH)
        words = f"{self._name:<14} {'█' * full}{'░' * (_WIDTH - full)} {share:4.0%}  {self._done:,} of {self._total:,}"
        elapsed_s = self._shown_s - self._step_s
        rate = (self._done - self._before) / elapsed_s if elapsed_s > 1 else 0
        if not rate:
            return words
        return f"{words}  {rate:,.0f}/s, {(self._total - self._done) / rate:,.0f} s left"


def _lines(facts: dict[str, Any]) -> list[str]:
    """The result for people."""
    tables = [f"  {name:<24}{count:>14,}" for name, count in facts["tables"].items()]
    size = f"{facts['rows']:,} rows, {facts['bytes'] / (1 << 20):,.1f} MiB"
    if facts.get("dry_run"):
        verb = "would continue the copy of" if facts["continues"] else "would copy"
        return [*tables, f"{verb} {size} from {facts['from']} to {facts['to']}; nothing has changed"]
    verb = "continued and completed" if facts["continued"] else "copied and verified"
    return [*tables, f"{verb}: {size} from {facts['from']} to {facts['to']} in {facts['seconds']:,.1f} s"]
