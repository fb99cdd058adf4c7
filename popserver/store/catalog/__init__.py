"""Topics, message queues, consumer groups, and which group has met which topic."""

from __future__ import annotations

from popserver.store.catalog.groups import (
    CreateGroup,
    DeleteGroup,
    FoundGroup,
    UpdateGroup,
    create_group,
    delete_group,
    find_group,
    groups_by_id,
    list_groups,
    update_group,
)
from popserver.store.catalog.locking import CATALOG_LOCK, lock, lock_if_free
from popserver.store.catalog.meeting import FixMode, Meet, fix_mode, meet, used
from popserver.store.catalog.naming import group_not_found, of_another_mode, topic_not_found
from popserver.store.catalog.purging import Purge, purge
from popserver.store.catalog.topics import (
    CreateTopic,
    DeleteTopic,
    UpdateTopic,
    create_topic,
    delete_topic,
    ensure_topic,
    find_topic,
    list_topics,
    topics_by_id,
    update_topic,
)

__all__ = [
    "CATALOG_LOCK",
    "CreateGroup",
    "CreateTopic",
    "DeleteGroup",
    "DeleteTopic",
    "FixMode",
    "FoundGroup",
    "Meet",
    "Purge",
    "UpdateGroup",
    "UpdateTopic",
    "create_group",
    "create_topic",
    "delete_group",
    "delete_topic",
    "ensure_topic",
    "find_group",
    "find_topic",
    "fix_mode",
    "group_not_found",
    "groups_by_id",
    "list_groups",
    "list_topics",
    "lock",
    "lock_if_free",
    "meet",
    "of_another_mode",
    "purge",
    "topic_not_found",
    "topics_by_id",
    "update_group",
    "update_topic",
    "used",
]
