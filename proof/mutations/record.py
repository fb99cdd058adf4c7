"""The verdicts so far: a run judges what has none yet, so hours of judging may be many runs.

For each file it keeps the digest of its source, and one letter for each mutant in the order of `mutants_of`. A file
that has changed begins anew. A verdict stays when tests change, because they only become more. Without the file of the
verdicts all is judged. A second file beside it has the verdicts of a run that is not finished.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

from proof.mutations.forks import Verdict
from proof.mutations.mutants import Mutant

_LETTERS: Final = {
    Verdict.FAILED: "f",
    Verdict.BROKEN: "b",
    Verdict.SURVIVED: "S",
    Verdict.UNREACHED: "U",
    Verdict.HUNG: "H",
    Verdict.DIED: "D",
    Verdict.REFUSED: "R",
}
_VERDICTS: Final = {letter: verdict for verdict, letter in _LETTERS.items()}
_NONE: Final = "."


class _Noted(NamedTuple):
    """A verdict of a run that is not finished."""

    path: str
    digest: str
    of: int  # how many mutants the file has
    at: int
    letter: str


class Record:
    """The verdicts on the mutants of files below `root`, kept in `folder`."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder
        self._root, self._path = root, folder / "verdicts" / "mutations.json"
        self._noted = self._path.with_suffix(".part")

    def read(self, mutants: Sequence[Mutant]) -> list[Verdict | None]:
        """In their order. `mutants`: all of some files, one file after the other."""
        files = self._files()
        return [
            _VERDICTS.get(letter)
            for path, those in _by_path(mutants)
            for letter in self._letters(files, path, len(those))
        ]

    def keep(self, mutants: Sequence[Mutant], verdicts: Iterable[Verdict | None]) -> None:
        """As `read` gives them."""
        files = self._files()
        told = zip(mutants, verdicts, strict=True)
        for path, those in groupby(told, key=lambda each: each[0].path):
            letters = "".join(_NONE if each is None else _LETTERS[each] for _, each in those)
            files[path] = {"digest": self._digest(path), "verdicts": letters}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(dict(sorted(files.items())), indent=1) + "\n")
        self._noted.unlink(missing_ok=True)

    def noting(self, mutants: Sequence[Mutant]) -> Callable[[int, Verdict], None]:
        """A function that takes the place of one of them, and its verdict. Any process may call it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        of = [
            _Noted(path, self._digest(path), len(those), at, _NONE)
            for path, those in _by_path(mutants)
            for at in range(len(those))
        ]

        def note(place: int, verdict: Verdict) -> None:
            with self._noted.open("a") as noted:
                noted.write(json.dumps(of[place]._replace(letter=_LETTERS[verdict])) + "\n")

        return note

    def _files(self) -> dict[str, Mapping[str, str]]:
        files = json.loads(self._path.read_text()) if self._path.exists() else {}
        for line in self._noted.read_text().splitlines() if self._noted.exists() else ():
            noted = _Noted(*json.loads(line))
            letters = self._letters(files, noted.path, noted.of)
            if noted.digest == self._digest(noted.path):
                letters = letters[: noted.at] + noted.letter + letters[noted.at + 1 :]
                files[noted.path] = {"digest": noted.digest, "verdicts": letters}
        return files

    def _letters(self, files: Mapping[str, Mapping[str, str]], path: str, count: int) -> str:
        of = files.get(path, {})
        known = of.get("verdicts", "")
        return known if of.get("digest") == self._digest(path) and len(known) == count else _NONE * count

    def _digest(self, path: str) -> str:
        return hashlib.sha256((self._root / path).read_bytes()).hexdigest()[:16]


def _by_path(mutants: Iterable[Mutant]) -> Iterator[tuple[str, list[Mutant]]]:
    for path, those in groupby(mutants, key=lambda each: each.path):
        yield path, [*those]


def in_drawn_order(places: Sequence[int], of: int, seed: int = 0) -> list[int]:
    """So what has been judged at any time is a sample. The order of places in `range(of)` is always the same."""
    rank = random.Random(seed).sample(range(of), of)
    return sorted(places, key=rank.__getitem__)
