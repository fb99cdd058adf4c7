"""Writes docs/api/names.txt: every public name of the Python API, with its arguments and attributes.

    python docs/api/names.py [--check]    # --check writes nothing, and fails if the file is not up to date

docs/stability.md says what the file is for. It has a line for each function, class, argument list and attribute, so a
diff of it shows what a program may notice.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).with_name("names.txt")
MODULES: Final = (
    "popclient", "popclient.aio", "popclient.admin", "popclient.sql", "popclient.spark", "popclient.otel",
    "popclient.frameworks.taskiq", "popclient.remoting", "popserver", "popserver.pytest_plugin",
)  # fmt: skip
OURS: Final = ("popclient", "popserver")


def main() -> int:
    text = "".join(f"{line}\n" for module in MODULES for line in lines_of(module))
    if FILE.exists() and FILE.read_text() == text:
        return 0
    if "--check" in sys.argv[1:]:
        print(f"{FILE.name} is not up to date; look at what changed with: make generate, git diff", file=sys.stderr)
        return 1
    FILE.write_text(text)
    return 0


def lines_of(module: str) -> Iterator[str]:
    found = importlib.import_module(module)
    names = getattr(found, "__all__", None) or [name for name in vars(found) if name.startswith("pop_")]
    for name in sorted(names):
        yield from _lines(f"{module}.{name}", getattr(found, name))


def _lines(name: str, it: object) -> Iterator[str]:
    if inspect.isclass(it):
        yield f"{name}{_bases(it)}"
        if issubclass(it, enum.Enum):
            yield from (f"  {each.name} = {each.value!r}" for each in it)
        elif not issubclass(it, Exception):
            yield f"  {_signature('__init__', it)}"
        yield from sorted(_members(it))
    elif callable(it):
        yield _signature(name, it)
    else:
        yield name


def _bases(it: type) -> str:
    bases = [each.__name__ for each in it.__bases__ if not each.__name__.startswith("_") and each is not object]
    return f"({', '.join(bases)})" if bases else ""


def _members(it: type) -> Iterator[str]:
    """What the class and its private bases in our packages have; a public base has a place of its own."""
    seen = set()
    for base in it.__mro__:
        if base.__module__.partition(".")[0] not in OURS:
            continue
        annotated = [name for name in vars(base).get("__annotations__", {}) if name not in vars(base)]
        for name in [*vars(base), *annotated]:
            if name.startswith("_") or name in seen:
                continue
            seen.add(name)
            member = inspect.getattr_static(it, name, None)
            if isinstance(member, enum.Enum):
                continue
            function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            yield f"  {_signature(name, function)}" if inspect.isroutine(function) else f"  {name}"


def _signature(name: str, function: object) -> str:
    """Arguments with their defaults. Types are left out: they are checked, and their text differs between Pythons."""
    try:
        signature = inspect.signature(function)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return f"{name}(…)"
    bare = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
    prefix = "async " if inspect.iscoroutinefunction(function) else ""
    return f"{prefix}{name}{signature.replace(parameters=bare, return_annotation=signature.empty)}"


if __name__ == "__main__":
    sys.exit(main())
