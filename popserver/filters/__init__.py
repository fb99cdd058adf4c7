"""Filters: which messages of a topic a group gets."""

from popserver.filters.sql import SqlFilter
from popserver.filters.tags import TagFilter, tag_hash

__all__ = ["Filter", "SqlFilter", "TagFilter", "tag_hash"]

Filter = TagFilter | SqlFilter
