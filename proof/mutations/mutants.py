"""Makes the mutants of a source file: copies of it with one change each, by the operators of mutmut.

Two operators are added, because much of this code is tables: an entry of a table of a module is removed, and a state or
an event is replaced by the next one of its enum. These are left out: text for people (what errors say, and text with a
space in it), what is logged, annotations, type variables, decorators, `strict=` of `zip`, and the case of "ascii".
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, cast

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

# Calls whose arguments mean nothing while the program runs, or are only logged.
_NOT_MUTATED_CALLS = {"len", "isinstance", "cast", "NewType", "get_logger"}
_TYPE_VARIABLES = {"TypeVar", "ParamSpec"}
_LOGGERS = {"log", "logger", "_log", "LOG"}
# The enums whose members are replaced, and where they are.
_ENUMS_IN = ("popserver/model/states.py", "popserver/model/retry.py")
_ENUMS = {"State", "Event", "Holder"}


class Mutant(NamedTuple):
    """A copy of a file with one change."""

    path: str  # from the root
    function: str  # the qualified name of the outermost function that has the change; empty outside of functions
    change: str  # the lines before and after, without indents
    lines: tuple[int, int]  # first and last line of the changed statement
    is_in_body: bool  # the change is in the body of `function`: not in its parameters
    source: str

    @property
    def place(self) -> str:
        return f"{self.path}:{self.function}" if self.function else self.path


def mutants_of(path: str, root: Path) -> list[Mutant]:
    """All mutants of a file, in the order of its lines. Mutants with the same source count once."""
    source = (root / path).read_text()
    wrapper = MetadataWrapper(cst.parse_module(source), unsafe_skip_copy=True)
    finder = _Finder(wrapper.resolve(PositionProvider), _successors(root))
    wrapper.module.visit(finder)
    body = [wrapper.module.code_for_node(each) for each in wrapper.module.body]
    end = len("".join(body))
    start = source.index(body[0]) if body else 0
    head, foot = source[:start], source[start + end :]
    seen = {source}
    mutants: list[Mutant] = []
    for found in finder.found:
        statement = wrapper.module.body[found.statement]
        changed = wrapper.module.code_for_node(cast("cst.CSTNode", statement.visit(_Replaced(found.node, found.by))))
        text = "".join([head, *body[: found.statement], changed, *body[found.statement + 1 :], foot])
        if text not in seen and _is_legal(changed):
            seen.add(text)
            change = _change(body[found.statement], changed)
            mutants.append(Mutant(path, found.function, change, found.lines, found.is_in_body, text))
    return mutants


def _is_legal(source: str) -> bool:
    """Whether a statement of a module is one, for Python."""
    try:
        compile(source, "mutant", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


def _change(before: str, after: str) -> str:
    """`old lines → new lines`, with single spaces."""
    old, new = before.splitlines(), after.splitlines()
    shorter = min(len(old), len(new))
    same = next((at for at in range(shorter) if old[at] != new[at]), shorter)
    end = next((at for at in range(shorter - same) if old[-1 - at] != new[-1 - at]), shorter - same)
    changed = (" ".join(" ".join(each.split()) for each in lines[same : len(lines) - end]) for lines in (old, new))
    return " → ".join(changed)


def _successors(root: Path) -> Mapping[tuple[str, str], str]:
    """The member that replaces each member of the enums; the last is replaced by the first."""
    found: dict[tuple[str, str], str] = {}
    for path in _ENUMS_IN:
        text = (root / path).read_text() if (root / path).exists() else ""
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and node.name in _ENUMS:
                names = [each.targets[0].id for each in node.body if _is_member(each)]  # type: ignore[attr-defined]
                found |= {(node.name, name): names[(at + 1) % len(names)] for at, name in enumerate(names)}
    return found


def _is_member(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)


class _Found(NamedTuple):
    node: cst.CSTNode
    by: cst.CSTNode
    statement: int  # of the module's statements
    function: str
    lines: tuple[int, int]
    is_in_body: bool


class _Finder(cst.CSTVisitor):
    """Finds the nodes to change."""

    def __init__(self, positions: Mapping[cst.CSTNode, CodeRange], successors: Mapping[tuple[str, str], str]) -> None:
        super().__init__()
        self.found: list[_Found] = []
        self._positions = positions
        self._successors = successors
        self._statement = -1
        self._above: list[cst.CSTNode] = []  # the module first, the parent last

    def on_visit(self, node: cst.CSTNode) -> bool:
        if len(self._above) == 1 and isinstance(node, cst.BaseStatement):
            self._statement += 1
        if self._is_left_out(node):
            return False
        if node in self._positions:
            self.found.extend(self._of(node))
        self._above.append(node)
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if self._above and self._above[-1] is original_node:
            self._above.pop()

    def _of(self, node: cst.CSTNode) -> Iterator[_Found]:
        changed: list[cst.CSTNode] = []
        for kind, operator in mutation_operators:
            if isinstance(node, kind):
                changed.extend(operator(node))
        changed.extend(self._table_without_an_entry(node))
        changed.extend(self._next_member(node))
        for by in changed:
            if self._is_kept(node, by):
                yield _Found(node, by, self._statement, self._function(), self._lines(node), self._is_in_body())

    def _table_without_an_entry(self, node: cst.CSTNode) -> Iterable[cst.CSTNode]:
        if isinstance(node, cst.Dict) and not self._function() and len(node.elements) > 1:
            for at in range(len(node.elements)):
                yield node.with_changes(elements=[*node.elements[:at], *node.elements[at + 1 :]])

    def _next_member(self, node: cst.CSTNode) -> Iterable[cst.CSTNode]:
        if isinstance(node, cst.Attribute) and isinstance(node.value, cst.Name):
            name = self._successors.get((node.value.value, node.attr.value))
            if name is not None:
                yield node.with_changes(attr=cst.Name(name))

    def _is_kept(self, node: cst.CSTNode, by: cst.CSTNode) -> bool:
        """Whether a change is more than one of `strict=`, or of the case of an encoding's name."""
        if isinstance(node, cst.SimpleString) and isinstance(by, cst.SimpleString):
            return node.value != '"ascii"' or by.value.lower() != node.value
        if isinstance(node, cst.Call) and isinstance(by, cst.Call):
            strict = [each for each in node.args if each.keyword is not None and each.keyword.value == "strict"]
            return all(each in by.args for each in strict)
        return True

    def _is_left_out(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Annotation | cst.Decorator | cst.Import | cst.ImportFrom | cst.TypeAlias):
            return True
        if isinstance(node, cst.Arg) and node.keyword is not None and node.keyword.value == "strict":
            return True
        if isinstance(node, cst.Assign) and isinstance(node.value, cst.Call):
            return _name(node.value.func) in _TYPE_VARIABLES
        if isinstance(node, cst.AnnAssign):
            return "TypeAlias" in cst.Module([]).code_for_node(node.annotation.annotation)
        if isinstance(node, cst.SimpleString | cst.FormattedString):
            return " " in cst.Module([]).code_for_node(node)
        if isinstance(node, cst.Raise):
            return True
        if isinstance(node, cst.Expr) and isinstance(node.value, cst.SimpleString | cst.ConcatenatedString):
            return True  # a docstring
        if isinstance(node, cst.If):
            return isinstance(node.test, cst.Name) and node.test.value == "TYPE_CHECKING"
        if isinstance(node, cst.Call):
            if isinstance(node.func, cst.Name):
                return node.func.value in _NOT_MUTATED_CALLS
            return isinstance(node.func, cst.Attribute) and _name(node.func.value) in _LOGGERS
        return False

    def _function(self) -> str:
        """The names of the classes and of the outermost function above the node."""
        names: list[str] = []
        for each in self._above:
            if isinstance(each, cst.FunctionDef):
                return ".".join([*names, each.name.value])
            if isinstance(each, cst.ClassDef):
                names.append(each.name.value)
        return ""

    def _is_in_body(self) -> bool:
        for each, below in zip(self._above, [*self._above[1:], None], strict=True):
            if isinstance(each, cst.FunctionDef):
                return below is each.body
        return False

    def _lines(self, node: cst.CSTNode) -> tuple[int, int]:
        """The lines of the statement; of a compound one, those of its head that have the node."""
        own = self._positions[node]
        for each in reversed(self._above):
            if isinstance(each, cst.SimpleStatementLine):
                return self._positions[each].start.line, self._positions[each].end.line
            if isinstance(each, cst.If | cst.While | cst.For | cst.With | cst.Try | cst.Match | cst.FunctionDef):
                return min(self._positions[each].start.line, own.start.line), own.end.line
        return own.start.line, own.end.line


def _name(node: cst.BaseExpression) -> str:
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else ""


class _Replaced(cst.CSTTransformer):
    """A copy with one node replaced."""

    def __init__(self, node: cst.CSTNode, by: cst.CSTNode) -> None:
        super().__init__()
        self._node, self._by = node, by

    def on_visit(self, node: cst.CSTNode) -> bool:
        return node is not self._node

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> cst.CSTNode:  # type: ignore[override]
        return self._by if original_node is self._node else updated_node
