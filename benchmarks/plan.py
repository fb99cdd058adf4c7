"""The sizes of a run."""

from __future__ import annotations

from typing import NamedTuple


class Plan(NamedTuple):
    """Sizes of a run. Times in seconds, sizes in messages unless said otherwise."""

    rounds: int = 3
    seconds: float = 2.0  # one measurement of a rate
    warm_up: float = 0.3  # in front of each measurement, not counted
    body_bytes: int = 1_024
    stock: int = 100_000  # stored before the receive cases begin
    backlog_small: int = 10_000
    backlog_large: int = 1_000_000
    over_time_small: int = 10_000
    over_time_large: int = 10_000_000
    small_body_bytes: int = 64  # of those, so that they fit in time and on the disk
    latency_rate: int = 200  # messages per second
    latency_seconds: float = 4.0
    far_from_due: int = 1_000_000  # delayed or held, while others fall due
    due_burst: int = 1_000  # at the same moment
    idle_polls: int = 1_000
    idle_poll_seconds: float = 20.0
    idle_seconds: float = 20.0  # as long as a poll, so that each renews itself once
    group_members: int = 8
    member_queues: int = 64  # that they share
    member_changes: int = 10  # a member joins or leaves, and all wait until the queues are shared
    churns: int = 200  # a member joins or leaves, and nobody waits
    starts: int = 3
    admin_topics: int = 10_000  # that 10 groups consume, while 200 consumers are connected
    lite_topics: int = 100_000  # that 50 clients share
    sizes_stored: int = 100_000  # of each kind of message whose bytes are measured
    sizes_groups: int = 10_000  # consumer groups
    sizes_message_groups: int = 100_000
    sizes_polls: int = 5_000
    sizes_polls_over_workers: int = 50_000
    sizes_workers: int = 4
    stored_sizes: tuple[int, ...] = (1_000_000, 10_000_000)
    insert_seconds: float = 1.0
    dead_letters: int = 1_000_000
    micro_batches: int = 40
    flights: int = 336_776  # all of 2013
    installed_wakes: int = 60  # sends that find a receive waiting, 200 ms apart
    installed_stock: int = 20_000
    installed_seconds: float = 3.0  # of each rate
    peers_messages: int = 200_000  # of one measurement, at most
    peers_stock: int = 30_000  # stored for a receive
    peers_stock_seconds: float = 5.0  # then what is stored by then is enough
    peers_rate: int = 20  # messages per second, for their way to a waiting consumer
    peers_latency_seconds: float = 4.0
    peers_compiling_seconds: float = 40.0  # of load in front, for servers that compile what runs often
    mirrored: int = 20_000  # by each mirror
    abuse_quiet_seconds: float = 4.0  # of the well-behaved client alone
    abuse_seconds: float = 15.0  # of an attack
    abuse_after_seconds: float = 4.0  # of the well-behaved client, when the attacker has gone
    abuse_rounds_per_s: float = 5.0  # send, receive, ack, of each of its 4 workers


FULL = Plan()
QUICK = Plan(
    rounds=1,
    seconds=0.6,
    warm_up=0.2,
    stock=40_000,
    backlog_large=100_000,
    over_time_large=200_000,
    latency_seconds=1.0,
    far_from_due=100_000,
    member_changes=4,
    churns=20,
    starts=1,
    lite_topics=20_000,
    sizes_stored=20_000,
    sizes_groups=500,
    sizes_message_groups=20_000,
    sizes_polls=1_000,
    sizes_polls_over_workers=5_000,
    stored_sizes=(100_000, 1_000_000),
    insert_seconds=0.3,
    dead_letters=100_000,
    micro_batches=15,
    flights=20_000,
    installed_wakes=20,
    installed_stock=8_000,
    installed_seconds=1.0,
    peers_stock=8_000,
    peers_stock_seconds=1.5,
    peers_latency_seconds=2.0,
    peers_compiling_seconds=6.0,
    abuse_quiet_seconds=2.0,
    abuse_seconds=8.0,
    abuse_after_seconds=2.0,
)
