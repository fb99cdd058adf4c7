"""Receives messages for a framework that settles them much later, renews their holds until then, and settles them.

Two threads do that, so the framework's own loop never waits for the server: one receives, the other settles and renews.
Both end before a fork and begin again after it; what is held meanwhile stays held, and any consumer of the group may
settle it.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from copy import copy
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from popclient import (
    ClientClosed,
    ClientConfig,
    InvalidReceiptHandle,
    MessageView,
    MultipleResults,
    PopError,
    SimpleConsumer,
)
from popclient.frameworks.forking import AroundForks

BATCH: Final = 32  # messages of one receive
RETRY_AFTER_S: Final = 1.0

log = logging.getLogger("popclient.frameworks")


class Settlement(enum.Enum):
    """How a message is settled."""

    ACK = "ack"
    REQUEUE = "requeue"  # delivered again at once; the attempt counts
    GIVE_UP = "give up"  # a dead letter at once
    GIVE_BACK = "give back"  # delivered again at once; the attempt does not count


class Order(NamedTuple):
    """A message that is to be settled. reason: why it is given up."""

    settlement: Settlement
    view: MessageView
    reason: str = ""


MessageGroup = tuple[str, str]  # topic, name


def group_of(view: MessageView) -> MessageGroup | None:
    """Its message group within its topic; None: it is in none."""
    return None if view.message_group is None else (view.topic, view.message_group)


class Intake(AroundForks):
    """The messages of one group for one channel of a framework. Safe in threads.

    The channel has at most one message of each message group at a time; the next one follows when it is settled.

    hold: how long the server keeps a message for this process without a renewal; it is renewed when a third has passed.
    room: how many more messages the channel takes now; None: any number.
    wake: called when `next_arrived` has something, or `refusal` is set.
    """

    def __init__(
        self,
        config: ClientConfig,
        group: str,
        hold: timedelta,
        room: Callable[[], int | None],
        wake: Callable[[], None],
    ) -> None:
        super().__init__()
        self.refusal: PopError | None = None  # why nothing is received any more
        self._config, self._group, self._hold = config, group, hold
        self._room, self._wake = room, wake
        self._topics: tuple[str, ...] = ()
        self._consumer: SimpleConsumer | None = None
        self._forget_messages()

    def _forget_messages(self) -> None:
        self._change = threading.Condition()
        self._receives = self._ending = False
        self._threads: list[threading.Thread] = []
        self._arrived: deque[str] = deque()  # tags
        self._held: dict[str, MessageView] = {}  # by tag
        self._busy: dict[MessageGroup, str] = {}  # tags of those that the channel has of a message group
        self._orders: list[Order] = []

    # ---- For the channel ----

    def receive_from(self, topics: Iterable[str]) -> None:
        """Receives from these topics from now on; from none: what is held can still be settled.

        Raises a PopError if the server refuses a topic or the group.
        """
        with self.lock:
            wanted = tuple(topics)
            self.suspend()
            self._receives = bool(wanted)
            self._topics = wanted or self._topics
            self.resume()
            if wanted and self._consumer is not None:
                try:
                    self._consumer.start()
                except PopError:
                    self.suspend()
                    raise
        if not wanted:
            self.give_back_arrived()

    def next_arrived(self) -> tuple[str, MessageView] | None:
        """The tag and the message of the next delivery; None: there is none now."""
        with self._change:
            for index, tag in enumerate(self._arrived):
                view = self._held[tag]
                if (group := group_of(view)) is not None:
                    if group in self._busy:
                        continue
                    self._busy[group] = tag
                del self._arrived[index]
                return tag, view
            return None

    def settle(self, tag: str, settlement: Settlement, reason: str = "") -> None:
        """Settles the message of this tag soon. Does nothing for one that is settled, or whose hold is lost."""
        with self._change:
            if (view := self._held.pop(tag, None)) is not None:
                self._orders.append(Order(settlement, view, reason))
            for group in [each for each, of in self._busy.items() if of == tag]:
                del self._busy[group]
                if settlement in (Settlement.REQUEUE, Settlement.GIVE_BACK):
                    self._give_back_arrived_of(group)  # it comes before them
            self._change.notify_all()
            has_followers = bool(self._arrived)
        if has_followers:
            self._wake()

    def give_back_arrived(self) -> None:
        """Gives back what nobody has seen."""
        with self._change:
            self._give_back_arrived_of(None)
            self._change.notify_all()

    def _give_back_arrived_of(self, group: MessageGroup | None) -> None:
        """Of one message group, or all."""
        for tag in [tag for tag in self._arrived if group in (None, group_of(self._held[tag]))]:
            self._arrived.remove(tag)
            self._orders.append(Order(Settlement.GIVE_BACK, self._held.pop(tag)))

    def give_back_all(self) -> None:
        """Gives back all that is held."""
        self.give_back_arrived()
        for tag in list(self._held):
            self.settle(tag, Settlement.GIVE_BACK)

    def look_again(self) -> None:
        """The channel may have room."""
        with self._change:
            self._change.notify_all()

    def close(self) -> None:
        """Settles what was ordered, and ends the session."""
        with self.lock:
            self.suspend()
            self._topics = ()
        for order in self._orders:
            log.warning("%s is delivered again: '%s' has not reached the server", order.view, order.settlement.value)

    # ---- Around forks ----

    def suspend(self) -> None:
        if self._consumer is None:
            return
        with self._change:
            self._ending = True
            self._change.notify_all()
        self._consumer.stop()
        for thread in self._threads:
            thread.join()
        self._consumer.close()
        self._consumer = None

    def resume(self) -> None:
        if not self._topics:
            return
        self._ending = False
        self._consumer = consumer = SimpleConsumer(
            self._config, self._group, self._topics, invisible_duration=self._hold
        )
        works = [self._settle, self._receive] if self._receives else [self._settle]
        self._threads = [
            threading.Thread(target=work, args=(consumer,), name=f"popmq-{work.__name__.strip('_')}", daemon=True)
            for work in works
        ]
        for thread in self._threads:
            thread.start()

    def forget(self) -> None:
        self._consumer, self._topics = None, ()
        self._forget_messages()

    # ---- The thread that receives ----

    def _receive(self, consumer: SimpleConsumer) -> None:
        said = ""
        while (free := self._await_room()) > 0:
            try:
                views = consumer.receive(max_messages=min(free, BATCH))
            except ClientClosed:
                return
            except PopError as failure:
                if not failure.retryable:
                    self.refusal = failure
                    self._wake()
                    return
                if said != str(failure):
                    log.warning("group %s receives again in a moment: %s", self._group, failure)
                said = str(failure)
                self._pause()
                continue
            said = ""
            with self._change:
                for view in views:
                    tag = f"{view.message_id}-{view.delivery_attempt}"
                    self._held[tag] = copy(view)  # which does not keep its consumer, and so gRPC
                    self._arrived.append(tag)
                self._change.notify_all()  # the other thread renews them
            if views:
                self._wake()

    def _await_room(self) -> int:
        """How many messages may be received, at least 1; 0: this thread ends."""
        with self._change:
            self._change.wait_for(lambda: self._ending or self._free() > 0)
            return 0 if self._ending else self._free()

    def _free(self) -> int:
        room = self._room()
        return (BATCH if room is None else room) - len(self._arrived)

    # ---- The thread that settles and renews ----

    def _settle(self, consumer: SimpleConsumer) -> None:
        while True:
            with self._change:
                if not (self._orders or self._ending):
                    self._change.wait(self._until_renewal())
                orders, self._orders = self._orders, []
                ending = self._ending
            left = self._carry_out(consumer, orders)
            with self._change:
                self._orders = left + self._orders
                if ending:
                    if left or not self._orders:
                        return
                    continue
            self._renew(consumer)
            if left:
                self._pause()

    def _carry_out(self, consumer: SimpleConsumer, orders: list[Order]) -> list[Order]:
        """Returns the orders that can be carried out later."""
        acks = [order for order in orders if order.settlement is Settlement.ACK]
        failed: list[tuple[Order, PopError]] = []
        try:
            if acks:
                consumer.ack([order.view for order in acks])
        except MultipleResults as some:
            of = {id(view): error for view, error in some.failures}
            failed += [(order, of[id(order.view)]) for order in acks if id(order.view) in of]
        except PopError as error:
            failed += [(order, error) for order in acks]
        for order in orders:
            try:
                if order.settlement is Settlement.REQUEUE:
                    consumer.change_invisible_duration(order.view, 0)
                elif order.settlement is Settlement.GIVE_UP:
                    consumer.forward_to_dead_letter_queue(order.view, order.reason)
            except PopError as error:
                failed.append((order, error))
        consumer.give_back([order.view for order in orders if order.settlement is Settlement.GIVE_BACK])
        for order, failure in failed:
            if not failure.retryable:
                log.warning("%s was not settled ('%s'): %s", order.view, order.settlement.value, failure)
        return [order for order, failure in failed if failure.retryable]

    def _renew(self, consumer: SimpleConsumer) -> None:
        with self._change:
            due = [(tag, view) for tag, view in self._held.items() if self._renewal_in(view) <= 0]
        for tag, view in due:
            if tag not in self._held or self._ending:
                continue
            try:
                consumer.change_invisible_duration(view, self._hold)
            except InvalidReceiptHandle as lost:
                with self._change:
                    self._held.pop(tag, None)
                    if tag in self._arrived:
                        self._arrived.remove(tag)
                log.warning("%s is delivered again, because its hold is lost: %s", view, lost)
            except PopError as failure:
                log.info("%s: its hold is renewed in a moment: %s", view, failure)

    def _until_renewal(self) -> float | None:
        """Seconds; None: nothing is held."""
        shortest = min(RETRY_AFTER_S, self._hold.total_seconds() / 12)  # also between two tries
        return max(min(map(self._renewal_in, self._held.values())), shortest) if self._held else None

    def _renewal_in(self, view: MessageView) -> float:
        """Seconds until a third of its hold has passed."""
        return (view.invisible_until - datetime.now(UTC) - self._hold * 2 / 3).total_seconds()

    def _pause(self) -> None:
        with self._change:
            self._change.wait_for(lambda: self._ending, RETRY_AFTER_S)
