"""What a holder may do with what it holds: ack, change its time, give it back, give it up.

The statement is the lock: state, hold id and time are compared in the WHERE of the statement that acts. No row back
means the handle is not current; only then is the reason looked up.
"""

from __future__ import annotations

from popserver.store.holds.acking import Ack, ack
from popserver.store.holds.changing import ChangeInvisible, Forward, change_invisible, forward
from popserver.store.holds.orphans import Adopt, Orphan, Withdraw, adopt, orphan, withdraw

__all__ = [
    "Ack",
    "Adopt",
    "ChangeInvisible",
    "Forward",
    "Orphan",
    "Withdraw",
    "ack",
    "adopt",
    "change_invisible",
    "forward",
    "orphan",
    "withdraw",
]
