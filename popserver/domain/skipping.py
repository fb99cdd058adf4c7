"""Why a message cannot be skipped, and what to do instead."""

from __future__ import annotations

from popserver.domain.delivery import State
from popserver.domain.why import Evidence


def way_out(found: Evidence) -> str:
    """What an operator may do about a message that cannot be skipped."""
    if found.state is None:
        return "give the group its progress with: popmq group reset"
    state = found.state.shown
    if state is State.INFLIGHT:
        return "wait for its holder, or for the end of its hold, and skip it then"
    if state is State.READY and found.head is not None:
        return f"skip {found.head.message_id} first"
    if state is State.READY:
        return "only the next one of its queue or message group can be skipped; for all before it: popmq group reset"
    return "there is nothing left to skip"
