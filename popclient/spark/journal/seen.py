"""The ids of messages that the journal has or had, by topic and message id.

The ids of existing segments are in these; the ids of removed ones are in files, one for each removal, named after its
newest segment: `000000000042.ids`, a JSON list. The newest of these files always stays, because its number is the last
one of an empty journal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from popclient.spark.journal.segment import write_durably

_NAME: Final = re.compile(r"(\d{12,})\.ids")


class SeenIds:
    """The ids of the newest segments, of `window` messages or up to a segment more; with 0 it keeps none.

    It drops the ids of old segments even if Spark has not read them yet.
    """

    def __init__(self, folder: Path, window: int) -> None:
        self._folder = folder
        self.window = window
        self._by_seq: dict[int, list[str]] = {}
        self._known: set[str] = set()
        self._files: list[int] = []

    def load(self) -> None:
        """Reads the ids of removed segments."""
        self._files = sorted(int(named[1]) for path in self._folder.iterdir() if (named := _NAME.fullmatch(path.name)))
        for seq in self._files:
            self.add(seq, json.loads(self._path(seq).read_bytes()))

    @property
    def last_removed(self) -> int:
        """The newest removed segment; 0 if there is none."""
        return self._files[-1] if self._files else 0

    def __contains__(self, message: str) -> bool:
        return message in self._known

    def add(self, seq: int, messages: Iterable[str]) -> None:
        """Adds the messages of a segment, each by its `identity`."""
        if self.window:
            ids = self._by_seq[seq] = list(messages)
            self._known.update(ids)
            self._forget_oldest()

    def keep(self, first: int, last: int) -> None:
        """Writes the ids of segments that will be removed next; raises OSError."""
        ids = [identity for seq in range(first, last + 1) for identity in self._by_seq.get(seq, ())]
        write_durably(self._path(last), lambda file: file.write(json.dumps(ids).encode()))
        self._files.append(last)
        oldest_known = next(iter(self._by_seq), last + 1)
        while len(self._files) > 1 and self._files[0] < oldest_known:
            self._path(self._files.pop(0)).unlink()

    def _forget_oldest(self) -> None:
        """Drops the oldest segments that the window does not need."""
        while len(self._known) - len(self._by_seq[oldest := next(iter(self._by_seq))]) >= self.window:
            self._known.difference_update(self._by_seq.pop(oldest))

    def _path(self, seq: int) -> Path:
        return self._folder / f"{seq:012d}.ids"


def identity(topic: str, message_id: str) -> str:
    """Unique for a message, because names of topics have no slash."""
    return f"{topic}/{message_id}"
