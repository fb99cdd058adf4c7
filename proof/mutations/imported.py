"""Judges a mutant by importing it: for changes outside of functions, and in functions that run during an import.

A fork of a process that has loaded other packages, but nothing of the project, imports the mutant in place of its file
and runs the tests that reach this file, the quickest first, then others.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

import pytest

from proof.mutations.forks import BROKEN, DIED, FAILED, PASSED, silence
from proof.mutations.host import module_of, pytest_options
from proof.mutations.mutants import Mutant


class _Finder(MetaPathFinder):
    """Finds one module, with other source."""

    def __init__(self, name: str, path: Path, source: str) -> None:
        self._name, self._path, self._source = name, path, source

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        return importlib.util.spec_from_file_location(
            fullname, self._path, loader=_Loader(fullname, str(self._path), self._source)
        )


class _Loader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, source: str) -> None:
        super().__init__(fullname, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._source, self.path, "exec", dont_inherit=True)


class Chosen:
    """A plugin of pytest that runs chosen tests, in their order."""

    def __init__(self, tests: Sequence[str]) -> None:
        self._order = {test: at for at, test in enumerate(tests)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [each for each in items if each.nodeid in self._order]
        items[:] = sorted(chosen, key=lambda each: self._order[each.nodeid])


@dataclass(frozen=True)
class ImportedTrial:
    """Runs in a fork."""

    root: Path
    mutant: Mutant
    options: tuple[str, ...]
    tests: Sequence[str]

    def __call__(self, _patience: float) -> int:
        silence()
        sys.meta_path.insert(0, _Finder(module_of(self.mutant.path), self.root / self.mutant.path, self.mutant.source))
        files = dict.fromkeys(each.partition("::")[0] for each in self.tests)
        code = pytest.main([*pytest_options, "-x", *self.options, *files], plugins=[Chosen(self.tests)])
        ends = {
            pytest.ExitCode.OK: PASSED,
            pytest.ExitCode.TESTS_FAILED: FAILED,
            pytest.ExitCode.INTERRUPTED: BROKEN,
            pytest.ExitCode.USAGE_ERROR: BROKEN,  # a conftest.py cannot be imported; the control could
            pytest.ExitCode.INTERNAL_ERROR: BROKEN,  # nor can a plugin
        }
        return ends.get(pytest.ExitCode(code), DIED)


def load_others(names: Sequence[str]) -> None:
    """Load modules of other packages, so that forks need not; what cannot be loaded alone is left out."""
    for name in names:
        try:
            importlib.import_module(name)
        except Exception:  # noqa: BLE001 - any package may refuse in its own way
            continue
