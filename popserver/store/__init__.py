"""Memory: every verb is a plain function `(transaction, requests) → results` over SQLAlchemy Core.

Nothing here reads time or commits. Several requests of one kind travel in one call, so that one statement serves them
all; the writer calls the verbs of one transaction in `ORDER`, everywhere the same, so that two servers on one database
never wait for each other in a circle.
"""

from collections.abc import Sequence
from typing import Any

from popserver.store import (
    acl,
    attempts,
    catalog,
    clock,
    cloning,
    dead_letter_purge,
    dead_letters,
    due,
    entering,
    group_members,
    holds,
    idempotency,
    members,
    message_groups,
    messages,
    offsets,
    pending,
    queue_locks,
    reading,
    receiving,
    redrive_plans,
    resetting,
    retention,
    retry_copies,
    send_back,
    skipping,
    transactions,
)
from popserver.store.database import Database
from popserver.store.transaction import Transaction

# Catalog, servers, clients and members, then queue counters, then what is pending, then progress, then deliveries.
# Those that name a message go before those that choose: what an ack frees, a receive of the same transaction may take.
ORDER = (
    catalog.create_topic,
    catalog.update_topic,
    catalog.delete_topic,
    catalog.create_group,
    catalog.update_group,
    catalog.delete_group,
    catalog.meet,
    catalog.fix_mode,
    members.beat,
    members.attend,
    members.leave,
    members.welcome,
    clock.note,
    group_members.attend,
    group_members.empty,
    queue_locks.unlock,
    queue_locks.lock,
    messages.append,
    pending.pend,
    pending.recall,
    pending.cancel,
    transactions.end_transaction,
    transactions.take_checks,
    transactions.give_back,
    entering.enter_due,
    offsets.commit,
    resetting.reset,
    cloning.clone,
    skipping.skip,
    send_back.send_back,
    holds.adopt,
    holds.change_invisible,
    holds.ack,
    attempts.renew,
    attempts.ack,
    holds.forward,
    holds.orphan,
    holds.withdraw,
    receiving.receive,
    attempts.receive,
    due.end_due,
    retention.retain,
    idempotency.expire,
    catalog.purge,
    acl.create_user,
    acl.change_user,
    acl.delete_user,
    acl.add_policy,
    acl.remove_policy,
    redrive_plans.make,
    redrive_plans.write_down,
    redrive_plans.cancel,
    redrive_plans.run,
    redrive_plans.redrive_now,
    dead_letter_purge.purge,
    reading.read,
)
_REMOVES = (retention.retain, catalog.purge)
# These have rows of dead letters, or of the server's own queues, under their hands, and wait for nothing any more.
_LAST = (redrive_plans.run, redrive_plans.redrive_now, dead_letter_purge.purge)


def lock(tx: Transaction, wishes: Sequence[Any]) -> None:
    """Take every lock the wishes name, before anything else and in one order.

    Whoever waits for such a lock then holds no other but such, taken in the same order; and whoever only chooses waits
    for none. So no two servers wait for each other in a circle.
    """
    message_groups.lock(tx, (place for wish in wishes if hasattr(wish, "places") for place in wish.places()))
    queue_locks.have_groups(tx, wishes)
    redrive_plans.lock(tx, (plan_id for wish in wishes if hasattr(wish, "plans") for plan_id in wish.plans()))
    # The last of them: the verbs that change what exists take it on their way, when the others are held.
    if any(hasattr(wish, "may_fix_mode") and wish.may_fix_mode for wish in wishes):
        catalog.lock(tx)


def before(tx: Transaction, verb: Any) -> None:
    """Messages are about to be removed, or locked: what is to be made of them is made first."""
    if verb in _REMOVES or verb in _LAST:
        _fill_own_queues(tx)


def finish(tx: Transaction) -> None:
    """Write what the verbs have left for the end, where it waits for nobody who waits for us."""
    _fill_own_queues(tx)
    idempotency.finish(tx)


def _fill_own_queues(tx: Transaction) -> None:
    dead_letters.fill(tx)
    retry_copies.fill(tx)


__all__ = ["ORDER", "Database", "before", "finish", "lock"]
