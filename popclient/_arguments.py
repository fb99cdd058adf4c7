"""Checks of arguments. An error names the argument, its value, and the allowed values."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, field, fields
from datetime import timedelta
from typing import Any, Final, NoReturn, Self

# No wait is longer, and a time that far ahead is still within the range of datetime.
LONGEST: Final = timedelta(days=36_500)
ZERO: Final = timedelta(0)
SHOWN: Final = 60  # bytes, or characters, of a value
MILLISECOND: Final = timedelta(milliseconds=1)  # the shortest duration of an option that must not be zero

_PART: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*")
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_duration_ms(written: str) -> int:
    """Milliseconds of `500ms`, `10s`, `1.5m`, `2h`, `3d`, or several in a row (`1h30m`); raises `ValueError`.

    Rounds to whole milliseconds. The server reads durations by the same rules, and the same tests hold for both.
    """
    given = written.strip()
    parts = list(_PART.finditer(given))
    if not parts or "".join(part[0] for part in parts) != given:
        raise ValueError(f"'{written}' is not a duration; write 500ms, 10s, 5m, 2h or 1h30m")
    duration_ms = sum(float(part[1]) * _UNIT_MS[part[2]] for part in parts)
    if duration_ms >= 2**63:
        raise ValueError(f"'{written}' is too long for a duration")
    return round(duration_ms)


def as_timedelta(name: str, given: float | timedelta, least: timedelta = ZERO, most: timedelta = LONGEST) -> timedelta:
    """Seconds or a timedelta, as a timedelta. Raises TypeError for anything else, ValueError beyond the limits."""
    what = "seconds or a timedelta"
    if isinstance(given, timedelta):
        if not least <= given <= most:
            raise ValueError(_refusal(name, given, what, least, most))
        return given
    _require_number(name, given, what, least, most)
    return timedelta(seconds=given)


def as_seconds(name: str, given: float | timedelta, least: timedelta = ZERO, most: timedelta = LONGEST) -> float:
    """Seconds or a timedelta, as seconds; raises as `as_timedelta`."""
    return as_timedelta(name, given, least, most).total_seconds()


# A consumer with such a tag gets nothing, and all that it could have got counts as done.
_READS_AS_SQL: Final = re.compile(
    r"""
    \w \s+ [=<>] \s+ \S  |  \w \s* ([<>]=|<>) \s* \S  |  \w \s* = \s* '  |  \s (LIKE|CONTAINS) \s+ '
    |  \s IS \s+ (NOT \s+)? NULL  |  \s IN \s* \(  |  \s BETWEEN \s+ \S+ \s+ AND \s
    """,
    re.IGNORECASE | re.VERBOSE,
)


def require_tags(given: object) -> None:
    """Raises ValueError for a text that reads as a SQL condition where tags are expected."""
    if isinstance(given, str) and _READS_AS_SQL.search(given):
        raise ValueError(
            f"{given!r} is a text, so it names tags, but it reads as a SQL condition; write"
            f" FilterExpression.sql({given!r}), or FilterExpression({given!r}) if a tag is called that"
        )


def require_text(name: str, given: object) -> None:
    """Raises unless it is a text that UTF-8 can write."""
    if not isinstance(given, str):
        raise TypeError(f"{name} is {shown(given)}; it must be a str")
    try:
        given.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} is {shown(given)}; character {error.start + 1} is {given[error.start]!r}, half of a surrogate"
            " pair, which is no text: put the pair together, or leave it out"
        ) from None


def require_function(name: str, given: object) -> None:
    """Raises unless it can be called, or is None."""
    if given is not None and not callable(given):
        raise TypeError(f"{name} is {shown(given)}; it must be a function, or None")


def shown(value: object) -> str:
    """For an error: the beginning of a long value."""
    if isinstance(value, bytes | str) and len(value) > SHOWN:
        return f"{value[:SHOWN]!r}… ({len(value):,})"
    written = repr(value)
    return written if len(written) <= 2 * SHOWN else f"{written[: 2 * SHOWN]}…"


def not_copied(of: object) -> NoReturn:
    """The `__reduce__` of what belongs to a connection."""
    raise TypeError(f"{of!r} has a connection of this process and cannot be copied or pickled; make another one")


def require_whole(name: str, given: int, least: int = 1, most: int | None = None) -> None:
    """Raises unless it is a whole number within the limits."""
    limits = f"at least {least}" if most is None else f"from {least} to {most}"
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError(f"{name} is {given!r}; it must be a whole number, {limits}")
    if given < least or (most is not None and given > most):
        raise ValueError(f"{name} is {given}; it must be {limits}")


# ---- Options of a client ----

# Takes the name of an option and what the user gave for it, and returns the option's value, or raises.
Check = Callable[[str, Any], Any]


def option(check: Check, default: Any = MISSING) -> Any:
    """A field of `Options` with its check."""
    return field(default=default, metadata={"check": check})


class Options:
    """Base of frozen dataclasses with the options of a client. The check of each field makes its value."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for each in fields(self):  # type: ignore[arg-type]  # a subclass is a dataclass
            if check := each.metadata.get("check"):
                object.__setattr__(self, each.name, check(each.name, getattr(self, each.name)))
        self._check_together()

    def _check_together(self) -> None:
        """Raises ValueError for options that do not fit together."""

    @classmethod
    def among(cls, given: Mapping[str, Any]) -> Self:
        """Those of the arguments of a constructor that are options."""
        return cls(**{each.name: given[each.name] for each in fields(cls) if each.name in given})  # type: ignore[arg-type]


def whole(least: int = 1, most: int | None = None) -> Check:
    def check(name: str, given: int) -> int:
        require_whole(name, given, least, most)
        return given

    return check


def duration(least: timedelta = ZERO, most: timedelta = LONGEST) -> Check:
    """Seconds or a timedelta; becomes a timedelta."""
    return lambda name, given: as_timedelta(name, given, least, most)


def seconds(least: timedelta = ZERO, most: timedelta = LONGEST) -> Check:
    """Seconds or a timedelta; becomes seconds."""
    return lambda name, given: as_seconds(name, given, least, most)


def group_name(consumer: str, why: str = "") -> Check:
    """consumer: with its article, for the error. why: it needs a group."""

    def check(name: str, given: str) -> str:
        if not isinstance(given, str) or not given.strip():
            raise ValueError(f"{name} is {given!r}; {consumer} needs the name of its consumer group{why}")
        require_text(name, given)
        return given

    return check


def is_async(function: Callable[..., Any]) -> bool:
    """Is it a coroutine function, or an object whose __call__ is one?"""
    call = getattr(function, "__call__", None)  # noqa: B004  the method itself is looked at
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _require_number(name: str, given: float, what: str, least: timedelta, most: timedelta) -> None:
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise TypeError(_refusal(name, repr(given), what, least, most))
    if not least.total_seconds() <= given <= most.total_seconds():  # nor is NaN
        raise ValueError(_refusal(name, given, what, least, most))


def _refusal(name: str, given: object, what: str, least: timedelta, most: timedelta) -> str:
    return f"{name} is {given}; it must be {what}, from {_shown(least)} to {_shown(most)}"


def _shown(limit: timedelta) -> str:
    return f"{limit.days} days" if limit.days else f"{limit.total_seconds():g} s"
