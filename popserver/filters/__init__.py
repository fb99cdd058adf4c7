"""Which of a topic's messages a group wants."""

from popserver.filters.sql import SqlFilter
from popserver.filters.tags import TagFilter, tag_hash

__all__ = ["Filter", "SqlFilter", "TagFilter", "tag_hash"]

Filter = TagFilter | SqlFilter
