"""Topics: made, changed, removed, listed."""

from __future__ import annotations

from collections.abc import Iterable

from popclient.admin.answers import topic_of
from popclient.admin.calls import Calls
from popclient.admin.facts import Topic
from popproto.v1 import admin_pb2 as wire
from popproto.v2 import definition_pb2 as pb


class Topics(Calls):
    """The calls about topics."""

    def create_topic(self, name: str, *, queue_count: int = 0, accept_message_types: Iterable[str] = ()) -> Topic:
        """0 queues and no types stand for the server's defaults. Types are NORMAL, FIFO, DELAY, TRANSACTION."""
        request = wire.CreateTopicRequest(
            topic=self._named(name), queue_count=queue_count, accept_message_types=_types(accept_message_types)
        )
        return topic_of(self._call(lambda link: link.admin.CreateTopic, request).topic)

    def update_topic(
        self, name: str, *, queue_count: int | None = None, accept_message_types: Iterable[str] = ()
    ) -> Topic:
        """What is not given stays as it is. The number of queues only grows."""
        request = wire.UpdateTopicRequest(
            topic=self._named(name), queue_count=queue_count, accept_message_types=_types(accept_message_types)
        )
        return topic_of(self._call(lambda link: link.admin.UpdateTopic, request).topic)

    def delete_topic(self, name: str) -> None:
        self._call(lambda link: link.admin.DeleteTopic, wire.DeleteTopicRequest(topic=self._named(name)))

    def get_topic(self, name: str) -> Topic:
        return topic_of(
            self._call(lambda link: link.admin.GetTopic, wire.GetTopicRequest(topic=self._named(name))).topic
        )

    def list_topics(self) -> list[Topic]:
        """Those of the config's namespace; all of them without one. Servers bound the list."""
        return [
            topic_of(each) for each in self._call(lambda link: link.admin.ListTopics, wire.ListTopicsRequest()).topics
        ]


def _types(names: Iterable[str]) -> list[pb.MessageType.ValueType]:
    known = [name for name, number in pb.MessageType.items() if number]
    wanted = list(names)
    for name in wanted:
        if name not in known:
            raise ValueError(f"message type {name!r} is not known; choose from {', '.join(known)}")
    return [pb.MessageType.Value(name) for name in wanted]
