"""Administration of a PopMQ server: topics, groups, progress, messages, dead letters, redrives, users, status.

Uses popmq.v1.Admin; with a server that does not offer it, such as RocketMQ's, each call raises UnsupportedByServer.
Synchronous, safe in threads; fails fast if no server listens.

    with Admin("127.0.0.1:8081") as admin:
        admin.create_topic("flights", queue_count=8)
        print(admin.status().messages)
"""

from __future__ import annotations

from popclient._sync.admin.admin import Admin
from popclient.admin.facts import (
    ClientFacts,
    Consumer,
    ExponentialBackoff,
    FilterTrial,
    FoundMessages,
    Group,
    GroupLag,
    HistoryEntry,
    Hold,
    LiteTopic,
    LiteTopicFacts,
    LiteTopicGroup,
    LockedMessageGroup,
    LockedMessageGroups,
    MessageFacts,
    MessageState,
    MovedOffset,
    Pause,
    Queue,
    QueueLag,
    Redeliveries,
    ScheduledMessage,
    SkippedMessage,
    Subscription,
    Topic,
    Trial,
    Why,
)
from popclient.admin.redrive_facts import (
    DeadLetter,
    DeadLetterPage,
    DeadLetterSelection,
    Redrive,
    RedriveOrder,
    RedrivePlan,
    RedriveStep,
    Repair,
)
from popclient.admin.server_facts import (
    Budget,
    Health,
    HealthCheck,
    Histogram,
    KnownServer,
    Status,
    Storage,
    StoreRepair,
    StuckRow,
)
from popclient.admin.user_facts import Explanation, NewUser, Policy, User

__all__ = [
    "Admin",
    "Budget",
    "ClientFacts",
    "Consumer",
    "DeadLetter",
    "DeadLetterPage",
    "DeadLetterSelection",
    "Explanation",
    "ExponentialBackoff",
    "FilterTrial",
    "FoundMessages",
    "Group",
    "GroupLag",
    "Health",
    "HealthCheck",
    "Histogram",
    "HistoryEntry",
    "Hold",
    "KnownServer",
    "LiteTopic",
    "LiteTopicFacts",
    "LiteTopicGroup",
    "LockedMessageGroup",
    "LockedMessageGroups",
    "MessageFacts",
    "MessageState",
    "MovedOffset",
    "NewUser",
    "Pause",
    "Policy",
    "Queue",
    "QueueLag",
    "Redeliveries",
    "Redrive",
    "RedriveOrder",
    "RedrivePlan",
    "RedriveStep",
    "Repair",
    "ScheduledMessage",
    "SkippedMessage",
    "Status",
    "Storage",
    "StoreRepair",
    "StuckRow",
    "Subscription",
    "Topic",
    "Trial",
    "User",
    "Why",
]
