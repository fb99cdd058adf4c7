"""Gives loaded functions the code of a mutant."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import CodeType, FunctionType

from proof.mutations.mutants import Mutant


def functions_of(mutant: Mutant, root: Path, imported: Sequence[int]) -> list[tuple[FunctionType, CodeType]]:
    """The loaded functions, each with its new code. Empty if the mutant has to come into being in another way.

    imported: the lines that run while the modules are imported.
    """
    codes = _codes_of(mutant, root) if mutant.is_in_body else {}
    return _functions(codes, root / mutant.path) if _runs_later(mutant, codes, imported) else []


def exchange(functions: Iterable[tuple[FunctionType, CodeType]]) -> None:
    """Give them their new code."""
    for function, code in functions:
        function.__code__ = code


# Codes by the qualified names of their functions, in the order of the file: a property has several of one name.
_Codes = dict[str, list[CodeType]]


def _codes_of(mutant: Mutant, root: Path) -> _Codes:
    """The codes that are not nested in another function, and that differ from those of the file."""
    path = str(root / mutant.path)
    new = _codes(compile(mutant.source, path, "exec", dont_inherit=True))
    old = _codes(compile((root / mutant.path).read_text(), path, "exec", dont_inherit=True))
    own = {name: codes for name, codes in new.items() if name == mutant.function}
    return own if all(len(codes) == len(old.get(name, ())) for name, codes in own.items()) else {}


def _codes(module: CodeType) -> _Codes:
    found: _Codes = {}
    for code in module.co_consts:
        if isinstance(code, CodeType):
            if code.co_flags & 0x1:  # CO_OPTIMIZED: a function, not a class
                found.setdefault(code.co_qualname, []).append(code)
            else:
                for name, codes in _codes(code).items():
                    found.setdefault(name, []).extend(codes)
    return found


def _functions(codes: _Codes, path: Path) -> list[tuple[FunctionType, CodeType]]:
    """The loaded functions, each with its new code. Empty if one is not found, or has other free variables."""
    loaded: _Loaded = _loaded(str(path))
    pairs: list[tuple[FunctionType, CodeType]] = []
    for name, new in codes.items():
        functions = loaded.get(name, [])
        lines = sorted({each.__code__.co_firstlineno for each in functions})
        if len(lines) != len(new):
            return []
        for function in functions:
            code = new[lines.index(function.__code__.co_firstlineno)]
            if len(code.co_freevars) != len(function.__code__.co_freevars):
                return []
            pairs.append((function, code))
    return pairs


_Loaded = dict[str, list[FunctionType]]
_CACHE: dict[str, _Loaded] = {}


def _loaded(path: str) -> _Loaded:
    """The loaded functions of a file, by qualified name."""
    if path not in _CACHE:
        found: _Loaded = {}
        for each in gc.get_objects():
            if type(each) is FunctionType and each.__code__.co_filename == path:
                found.setdefault(each.__code__.co_qualname, []).append(each)
        _CACHE[path] = found
    return _CACHE[path]


def _runs_later(mutant: Mutant, codes: _Codes, imported: Sequence[int]) -> bool:
    """Whether the function does not run while its module, or one that uses it, is imported."""
    lines = {line for each in codes.values() for code in each for *_, line in code.co_lines() if line}
    heads = {code.co_firstlineno for each in codes.values() for code in each}
    return not (lines - heads) & set(imported) or mutant.function == ""
