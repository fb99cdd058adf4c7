"""Finds the lines that run what a mutant changes outside of functions. Tests that reach them judge it first."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from proof.mutations.mutants import Mutant

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def lines_near(mutant: Mutant, source: str) -> frozenset[int]:
    """The body of the function whose parameters change, or of those that use a name whose value changes.

    source: of the file without the change. Empty if no function of the file uses it.
    """
    tree, changed = ast.parse(source), mutant.lines[0]
    functions = [each for each in ast.walk(tree) if isinstance(each, _Function)]
    near = [each for each in functions if each.lineno <= changed <= (each.end_lineno or each.lineno)]
    if not near:
        names = {name for each in ast.walk(tree) for name in _assigned(each, changed)}
        near = [each for each in functions if not names.isdisjoint(_used_in(each))]
    return frozenset(line for each in near for line in range(each.body[0].lineno, (each.end_lineno or 0) + 1))


def _assigned(node: ast.AST, line: int) -> Iterator[str]:
    """The names that an assignment at this line gives values, also of fields of a class."""
    if isinstance(node, ast.Assign | ast.AnnAssign) and node.lineno <= line <= (node.end_lineno or node.lineno):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name))


def _used_in(function: _Function) -> Iterator[str]:
    for node in (each for statement in function.body for each in ast.walk(statement)):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
