"""Which of a topic's messages a group wants."""

from popserver.domain.filtering.sql import SqlFilter
from popserver.domain.filtering.tag import TagFilter, tag_hash

__all__ = ["Filter", "SqlFilter", "TagFilter", "tag_hash"]

Filter = TagFilter | SqlFilter
