"""The same as a page shows, for a shell and for SQL. Everything is quoted: names come from strangers."""

from __future__ import annotations

import shlex


def popmq(*words: object, **options: object) -> str:
    """`popmq group show NAME`; an option that is None, empty or False is left out, one that is True has no value."""
    parts = ["popmq", *(str(each) for each in words)]
    for name, value in options.items():
        if value is None or value is False or value == "":
            continue
        parts.append(f"--{name.replace('_', '-')}")
        if value is not True:
            parts.append(str(value))
    return shlex.join(parts)


def literal(text: object) -> str:
    """A text in SQL."""
    return "'" + str(text).replace("'", "''") + "'"


def select(view: str, **equal: object) -> str:
    """`SELECT * FROM view WHERE column = 'value' AND …;`"""
    conditions = [f"{name} = {literal(value)}" for name, value in equal.items() if value not in (None, "")]
    return f"SELECT * FROM {view}" + (f" WHERE {' AND '.join(conditions)}" if conditions else "") + ";"  # noqa: S608
