"""What the servers of a run find around them: settings of the database, a pooler, a time zone, clocks, a disk.

A run draws a combination, because other tests have one of them at a time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final, NamedTuple

from proof.totals import COMBINATION, SETTING
from tests.support.hostile_settings import HOSTILE, WAYS

SLOW_DISK, POOLER = "slow disk", "pooler"  # parts that not every machine can have
ISOLATION: Final = "default_transaction_isolation"
ISOLATIONS = ("repeatable read", "serializable")
DATABASE: Final = "database"
SETTINGS_MAX = 6
ZONES = ("America/St_Johns", "Asia/Kathmandu", "Pacific/Chatham", "Pacific/Kiritimati")
APART_MAX = 4
FLUSH_MS = (2, 10, 40)
# A system clock may be wrong by so much, and is set to another of these values. Backwards it is a little only, because
# messages that producers delay would come later by as much.
CLOCKS_MS = (-3_000, -500, 0, 20_000, 90_000)
SHARE = 0.35  # of the runs that have a part


class Surroundings(NamedTuple):
    """A combination.

    settings: of Postgres, by name. way: whether the database has them, or the role. apart: how far the clock of each
    server is from the right one, from 0 to `APART_MAX`. clock_ms: by how much the system clock is wrong at first.
    flush_ms: what each flush of the disk takes longer.
    """

    settings: tuple[tuple[str, str], ...] = ()
    way: str = DATABASE
    has_pooler: bool = False
    zone: str = ""
    apart: tuple[int, ...] = ()
    sets_clock: bool = False
    clock_ms: int = 0
    flush_ms: int = 0

    @classmethod
    def drawn(
        cls, chance: random.Random, *, on_postgres: bool, servers: int, can_have: frozenset[str] = frozenset()
    ) -> Surroundings:
        """`can_have`: those parts that not every machine can have, and this one can."""

        def comes(part: str = "") -> bool:
            return chance.random() < SHARE and (not part or part in can_have)

        settings = dict(chance.sample(sorted(_ORDINARY.items()), chance.randrange(1, SETTINGS_MAX))) if comes() else {}
        if comes():
            settings[ISOLATION] = chance.choice(ISOLATIONS)
        way, has_pooler = chance.choice(WAYS), comes(POOLER)
        everywhere = cls(
            zone=chance.choice(ZONES) if comes() else "",
            apart=tuple(chance.randint(0, APART_MAX) for _ in range(servers)) if comes() else (),
            flush_ms=chance.choice(FLUSH_MS) if comes(SLOW_DISK) else 0,
        )
        sets_clock, clock_ms = comes(), chance.choice(CLOCKS_MS)
        if not on_postgres:
            return everywhere._replace(sets_clock=sets_clock, clock_ms=clock_ms if sets_clock else 0)
        # Servers on Postgres have its time. The pooler has no user for a role of the test's own.
        way = way if settings and not has_pooler else DATABASE
        return everywhere._replace(settings=tuple(sorted(settings.items())), way=way, has_pooler=has_pooler)

    def counts(self) -> Iterator[str]:
        """Names to count: of each value, and of the parts together."""
        parts = dict(self._parts())
        yield from (f"{SETTING}{each}" for values in parts.values() for each in values)
        yield f"{COMBINATION}{' + '.join(parts) or 'none'}"

    def __str__(self) -> str:
        return ", ".join(each for _, values in self._parts() for each in values)

    def _parts(self) -> Iterator[tuple[str, list[str]]]:
        """What is there at all, and the names of its values."""
        settings = dict(self.settings)
        if isolation := settings.pop(ISOLATION, ""):
            yield "isolation", [f"isolation {isolation}"]
        if settings:
            yield f"settings of the {self.way}", [f"{name}={value}" for name, value in settings.items()]
        if self.has_pooler:
            yield POOLER, ["PgBouncer"]
        if self.zone:
            yield "time zone", [f"time zone {self.zone}"]
        if self.apart:
            yield "clocks apart", ["clocks that are apart"]
        if self.sets_clock:
            yield "clock set", ["a system clock that is set"]
        if self.flush_ms:
            yield SLOW_DISK, [f"flushes that take {self.flush_ms} ms longer"]


ALONE = Surroundings()
_ORDINARY = {name: value for name, value in HOSTILE.items() if name != ISOLATION}
