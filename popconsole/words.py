"""How values are written for people: counts, durations, moments, sizes, ids, and the five states."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

THIN: Final = "\u202f"  # a narrow space that does not break a line
UNITS_S: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
ID_MAX: Final = 18


# What each number counts, wherever it stands.
MEANINGS: Final = {
    "Topics": "topics of users: without those of groups, for retries and dead letters",
    "Groups": "consumer groups, those without a topic yet too",
    "Messages stored": "messages that the topics have now, each once: without retries and the copies of dead letters",
    "Ever stored": "messages that these topics ever stored, those that are removed too",
    "Dead letters": "messages that groups gave up and that were not sent back, of all groups",
    "Clients": "producers and consumers that this server knows as connected",
    "Waiting receives": "receives that wait for a message now",
    "Ready": "stored and not delivered yet, or to be delivered again",
    "In flight": "with a consumer now",
    "Waiting": "waiting for the pause before a retry",
    "Dead": "given up and not sent back",
    "Done / s": "messages done a second, over the last minute",
    "Behind": "ready, in flight or waiting for a retry; the bar: of what the queue stores",
    "Oldest ready": "when the oldest ready message was stored",
}


class Shown(NamedTuple):
    """A state as it is shown everywhere: its word, the name of its colour in the style sheet, and its shape."""

    state: str
    colour: str
    shape: str
    text: str


STATES: Final = {
    each.state: each
    for each in (
        Shown("READY", "ready", "○", "ready"),
        Shown("INFLIGHT", "inflight", "◐", "in flight"),
        Shown("WAITING_RETRY", "waiting", "◔", "waiting for a retry"),
        Shown("COMMIT", "commit", "●", "done"),
        Shown("DLQ", "dlq", "✕", "dead letter"),
    )
}


def state(name: str) -> Shown:
    return STATES.get(name, Shown(name, "unknown", "·", name.lower().replace("_", " ")))


def count(number: float) -> str:
    """1204 as `1 204`, with narrow spaces."""
    return f"{number:,.0f}".replace(",", THIN)


def rate(per_second: float | None) -> str:
    """`0`, `0.4`, `12`, `1 204`; a dash where it is unknown."""
    if per_second is None:
        return "–"
    return f"{per_second:.1f}" if 0 < per_second < 10 else count(per_second)


def plural(number: int, one: str, many: str = "") -> str:
    """`1 group`, `2 groups`."""
    return f"{count(number)} {one if number == 1 else many or one + 's'}"


def duration(given: timedelta | float) -> str:
    """The two largest units: `1 h 30 min`, `21 s`, `350 ms`."""
    seconds = given.total_seconds() if isinstance(given, timedelta) else given
    if abs(seconds) < 1:
        return f"{seconds * 1_000:.0f} ms" if seconds else "0 s"
    if abs(seconds) < 10 and seconds % 1:
        return f"{seconds:.1f} s"
    rest, parts = round(abs(seconds)), []
    for unit, size in UNITS_S:
        number, rest = divmod(rest, size)
        if number:
            parts.append(f"{number} {unit}")
    return ("-" if seconds < 0 else "") + " ".join(parts[:2])


def written(given: timedelta) -> str:
    """As `popmq` takes it: `1h30m`, `10s`, `500ms`."""
    rest, text = given // timedelta(milliseconds=1), ""
    for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)):
        number, rest = divmod(rest, size)
        text += f"{number}{unit}" if number else ""
    return text or "0s"


def relative(moment: datetime | None, now: datetime) -> str:
    """`in 21 s`, `3 min ago`, `now`."""
    if moment is None:
        return "–"
    seconds = round((moment - now).total_seconds())
    if not seconds:
        return "now"
    words = duration(float(abs(seconds)))
    if 60 <= abs(seconds) < 3_600:
        words = " ".join(words.split(" ")[:2])
    return f"in {words}" if seconds > 0 else f"{words} ago"


def exact(moment: datetime | None) -> str:
    """`2026-11-20 14:02:11.250 UTC`."""
    if moment is None:
        return ""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.") + f"{moment.microsecond // 1_000:03d} UTC"


def epoch_ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000)


def iso(moment: datetime) -> str:
    """For the `datetime` of a `time` element."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def size(octets: int) -> str:
    """`512 B`, `1.4 KiB`, `12 MiB`."""
    number = float(octets)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1_024 or unit == "GiB":
            return f"{number:.0f} {unit}" if unit == "B" or number >= 10 else f"{number:.1f} {unit}"
        number /= 1_024
    raise AssertionError


def measure(number: int, unit: str) -> str:
    """A number with its unit; of bytes in larger units."""
    return size(number) if unit == "bytes" else f"{count(number)} {unit}"


def short(name: str) -> str:
    """An id, shortened in the middle."""
    return name if len(name) <= ID_MAX else f"{name[:8]}…{name[-8:]}"


def share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "–"


def listed(names: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *first, last = list(names) or [""]
    return f"{', '.join(first)} and {last}" if first else last
