"""Gives a loaded module the values of a mutant, for changes of what is computed while a module is imported.

A statement for a database is a value that a module assigns once. Importing the whole server again takes seconds. So the
changed statement runs again in the loaded module, and in the order of the file those that use its value. This is right
only if nobody else has a copy of a value: the names that get other values must be private, and classes, decorators and
registrations must not use them. Other mutants are imported (`imported`).
"""

from __future__ import annotations
import __future__

import ast
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import NamedTuple

_Function = ast.FunctionDef | ast.AsyncFunctionDef


class Rebinding(NamedTuple):
    """What runs again in a loaded module."""

    code: CodeType
    unchanged: CodeType  # the same statements, of the file
    lines: frozenset[int]  # of the functions that use the values, while they run

    def run(self, module: str) -> None:
        """Whatever the mutant raises comes through."""
        exec(self.code, vars(sys.modules[module]))

    def run_unchanged(self, module: str) -> None:
        """This must change nothing."""
        exec(self.unchanged, vars(sys.modules[module]))


def rebinding_of(old: str, new: str, path: str, imported: Collection[int]) -> Rebinding | None:
    """How a file's module becomes that of a mutant. None if it has to be imported.

    `imported`: the lines that run while the modules are imported.
    """
    before, after = ast.parse(old).body, ast.parse(new).body
    changed = [
        at for at, (one, other) in enumerate(zip(before, after, strict=True)) if ast.dump(one) != ast.dump(other)
    ]
    if len(changed) != 1 or not isinstance(after[changed[0]], ast.Assign | ast.AnnAssign | ast.FunctionDef):
        return None
    walk = _Walk(frozenset(imported), changed[0])
    if not walk.takes_all(after):
        return None
    code, unchanged = (_compiled([of[at] for at in sorted(walk.again)], path) for of in (after, before))
    return Rebinding(code, unchanged, frozenset(walk.lines()))


def _compiled(statements: list[ast.stmt], path: str) -> CodeType:
    flags = __future__.annotations.compiler_flag
    code: CodeType = compile(ast.Module(statements, []), path, "exec", flags, dont_inherit=True)
    return code


@dataclass
class _Walk:
    """Goes through the statements of a module until no further name is found that the change reaches."""

    imported: frozenset[int]
    changed: int

    def __post_init__(self) -> None:
        self.again: set[int] = set()
        self._values: set[str] = set()  # names with another value
        self._callers: set[str] = set()  # functions and classes that use these, or other callers
        self._users: dict[int, _Function] = {}

    def takes_all(self, statements: Sequence[ast.stmt]) -> bool:
        """Whether each statement can stay as it is, or run again. A function may use what stands below it."""
        known = -1
        while known < len(self._values | self._callers):
            known = len(self._values | self._callers)
            if not all(self._takes(at, each) for at, each in enumerate(statements)):
                return False
        return True

    def _takes(self, at: int, statement: ast.stmt) -> bool:
        if at != self.changed and not self._uses(statement):
            return True
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() if at == self.changed:
                return self._takes_changed(at, statement)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                return self._takes_user(statement, is_private=statement.name.startswith("_"))
            case ast.ClassDef():
                return self._takes_class(statement)
            case _ if at < self.changed:
                return True  # it has run before
            case ast.Assign() | ast.AnnAssign():
                self.again.add(at)
                names = _names_in(*(statement.targets if isinstance(statement, ast.Assign) else [statement.target]))
                self._values |= names
                return all(each.startswith("_") for each in names)
            case ast.Assert():
                self.again.add(at)
                return True
        return False

    def lines(self) -> Iterator[int]:
        for each in self._users.values():
            yield from _body(each)

    def _takes_changed(self, at: int, function: _Function) -> bool:
        self.again.add(at)
        self._values.add(function.name)
        self._users[function.lineno] = function
        return function.name.startswith("_") and not function.decorator_list

    def _takes_user(self, function: _Function, *, is_private: bool) -> bool:
        """A function that finds the values when it runs. Nobody else may have what it has computed before."""
        self._callers.add(function.name)
        if self._values & _names_in(*function.body):
            self._users[function.lineno] = function
        is_early = not self.imported.isdisjoint(_body(function))
        return (is_private or not is_early) and not self._uses(function.args, *function.decorator_list)

    def _takes_class(self, statement: ast.ClassDef) -> bool:
        self._callers.add(statement.name)
        methods = [each for each in statement.body if isinstance(each, _Function) and self._uses(each)]
        others = (each for each in statement.body if each not in methods)
        if self._uses(*others, *statement.bases, *statement.keywords, *statement.decorator_list):
            return False
        return all(self._takes_user(each, is_private=False) for each in methods)

    def _uses(self, *nodes: ast.AST) -> bool:
        return not _names_in(*nodes).isdisjoint(self._values | self._callers)


def _names_in(*nodes: ast.AST) -> set[str]:
    return {each.id for node in nodes for each in ast.walk(node) if isinstance(each, ast.Name)}


def _body(function: _Function) -> range:
    return range(function.body[0].lineno, (function.end_lineno or function.lineno) + 1)
