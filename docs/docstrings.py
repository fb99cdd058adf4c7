"""Turns the docstrings of this repository, which are plain text, into what Sphinx reads.

A paragraph may be text, code that is indented, a session (`>>> `), or a list of arguments: lines that begin with
`name: ` or `name, name: `. Names are in single backticks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby

ARGUMENT = re.compile(r"[a-z_]\w*(?:, [a-z_]\w*)*: ")
CODE = re.compile(r"(`[^`]+`)")
MARKUP = re.compile(r"([\\*|]|(?<=\w)_(?!\w)|(?<!\w)_(?=\w))")


def as_restructured_text(app: object, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Rewrites `lines` in place, as Sphinx expects of a handler of `autodoc-process-docstring`."""
    lines[:] = list(converted(lines))


def converted(lines: list[str]) -> Iterator[str]:
    for blank, paragraph in groupby(lines, lambda line: not line.strip()):
        if not blank:
            yield from _paragraph(list(paragraph))
            yield ""


def _paragraph(lines: list[str]) -> Iterator[str]:
    if lines[0].lstrip().startswith(">>>"):
        yield from (line.partition("  # doctest")[0].rstrip() for line in lines)
    elif all(line.startswith("    ") for line in lines):
        yield from [".. code-block:: python", "", *lines]
    else:
        text, *arguments = _items(lines)
        yield _escaped(text)
        yield ""
        yield from (f"* **{name}**: {_escaped(text)}" for name, _, text in (each.partition(": ") for each in arguments))


def _items(lines: list[str]) -> list[str]:
    """The text before the first argument, which may be empty, and each argument with its text, in a line each."""
    found = [""]
    for line in lines:
        if ARGUMENT.match(line):
            found.append(line)
        else:
            found[-1] = f"{found[-1]} {line.strip()}".strip()
    return found


def _escaped(text: str) -> str:
    return "".join(f"`{part}`" if CODE.fullmatch(part) else MARKUP.sub(r"\\\1", part) for part in CODE.split(text))
