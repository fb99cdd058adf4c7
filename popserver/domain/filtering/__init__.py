"""Which of a topic's messages a group wants."""

from popserver.domain.filtering.tag import TagFilter, tag_hash

__all__ = ["TagFilter", "tag_hash"]
