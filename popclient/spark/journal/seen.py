"""Which messages the journal has had, by topic and message id.

Of segments that are there the ids stand in them; of removed ones in files beside them, one for each removal, named by
the newest segment in it: `000000000042.ids`, a JSON list. The newest of these files stays for its number alone, so that
an emptied journal goes on counting where it was.
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
    """The ids of the newest segments, of `window` messages or a segment more; 0: none is kept.

    A segment is forgotten whether it was removed or not: what Spark has yet to read may be more than the window.
    """

    def __init__(self, folder: Path, window: int) -> None:
        self._folder = folder
        self.window = window
        self._by_seq: dict[int, list[str]] = {}
        self._known: set[str] = set()
        self._files: list[int] = []

    def load(self) -> None:
        """Reads what is known of removed segments."""
        self._files = sorted(int(named[1]) for path in self._folder.iterdir() if (named := _NAME.fullmatch(path.name)))
        for seq in self._files:
            self.add(seq, json.loads(self._path(seq).read_bytes()))

    @property
    def last_removed(self) -> int:
        """The newest segment that was removed; 0 for none."""
        return self._files[-1] if self._files else 0

    def __contains__(self, message: str) -> bool:
        return message in self._known

    def add(self, seq: int, messages: Iterable[str]) -> None:
        """The messages of a segment, each as `identity` names it."""
        if self.window:
            ids = self._by_seq[seq] = list(messages)
            self._known.update(ids)
            self._forget_oldest()

    def keep(self, first: int, last: int) -> None:
        """Writes down the known ids of segments that are about to be removed; raises OSError."""
        ids = [identity for seq in range(first, last + 1) for identity in self._by_seq.get(seq, ())]
        write_durably(self._path(last), lambda file: file.write(json.dumps(ids).encode()))
        self._files.append(last)
        oldest_known = next(iter(self._by_seq), last + 1)
        while len(self._files) > 1 and self._files[0] < oldest_known:
            self._path(self._files.pop(0)).unlink()

    def _forget_oldest(self) -> None:
        """As many segments as the window does without."""
        while len(self._known) - len(self._by_seq[oldest := next(iter(self._by_seq))]) >= self.window:
            self._known.difference_update(self._by_seq.pop(oldest))

    def _path(self, seq: int) -> Path:
        return self._folder / f"{seq:012d}.ids"


def identity(topic: str, message_id: str) -> str:
    """A name that only this message has: no topic has a slash in its own."""
    return f"{topic}/{message_id}"
