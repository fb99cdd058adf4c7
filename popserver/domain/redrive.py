"""Dead letters that go back: which, under what name, and what is different in them.

A redriven message begins anew: its attempts from 1, and it waits for nobody of its message group. A plan is the record
of what was sent back; each dead letter goes back at most once.
"""

from __future__ import annotations

from enum import StrEnum


class PlanState(StrEnum):
    """Where a plan is: a DRAFT while its messages are being written down; PLANNED before the first one goes."""

    DRAFT = "DRAFT"
    PLANNED = "PLANNED"
    RUNNING = "RUNNING"
    DONE = "DONE"
    CANCELLED = "CANCELLED"


class RedriveState(StrEnum):
    """What became of one message of a plan; SKIPPED: it was no dead letter any more when its turn came."""

    PLANNED = "PLANNED"
    REDRIVEN = "REDRIVEN"
    SKIPPED = "SKIPPED"


class Change(StrEnum):
    """Whether it is sent back as it was."""

    NONE = "NONE"
    REPAIR = "REPAIR"
