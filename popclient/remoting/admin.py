"""RocketMQAdmin: topics, groups and backlogs of a RocketMQ cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Literal, Self

from popclient._arguments import MILLISECOND, as_seconds, require_text, require_whole
from popclient._queues.subscription import RETRY_PREFIX
from popclient.admin.facts import ExponentialBackoff
from popclient.errors import NotFound
from popclient.remoting import answers, requests
from popclient.remoting.cluster import ClusterConnections, Master
from popclient.remoting.errors import CONSUMER_NOT_ONLINE, RefusedByBroker
from popclient.remoting.facts import Permission, RocketMQBacklog, RocketMQConsumer, RocketMQGroup, RocketMQTopic
from popclient.remoting.settings import group_of, group_settings, topic_of, topic_settings
from popclient.remoting.signatures import AccessKey

READ_AND_WRITE: Final = Permission.READ | Permission.WRITE
ATTEMPTS_MAX: Final = 2**31 - 1  # of RocketMQ, which keeps them in an int


class RocketMQAdmin:
    """Administers a RocketMQ 5 cluster, for asyncio. Topics and groups are created and changed on every master.

    A call that changes several masters is not one transaction: if it fails, repeat it; what is done stays as it is.

    Errors: Unreachable if a server does not answer; RefusedByBroker with the broker's remark if it says no; NotFound
    for a topic or group that does not exist; UnexpectedAnswer if the peer does not speak RocketMQ's remoting protocol.
    """

    def __init__(
        self,
        name_servers: str,
        *,
        access_key: str = "",
        access_secret: str = "",
        cluster: str = "",
        timeout: float | timedelta = 5.0,
        brokers: Iterable[str] = (),
    ) -> None:
        """name_servers: host:port, or several with `;` between them. access_key, access_secret: of a user of RocketMQ
        who may do it, if its brokers ask. cluster: its name, if the name servers know several. timeout: seconds per
        request, or a timedelta. brokers: names of brokers that the cluster must have: calls raise Unreachable while one
        is missing, also if the name servers have forgotten it.

        Raises ValueError for an address that is none.
        """
        for name, given in (("name_servers", name_servers), ("access_key", access_key), ("cluster", cluster)):
            require_text(name, given)
        seconds = as_seconds("timeout", timeout, MILLISECOND)
        self._cluster = ClusterConnections(
            name_servers, AccessKey(access_key, access_secret), seconds, cluster, brokers
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections; a later call opens them again."""
        await self._cluster.close()

    async def masters(self) -> dict[str, str]:
        """The addresses of the masters, by the names of their brokers.

        A name server forgets a broker that is down. So compare it with the brokers that there should be; if one is gone
        later, all calls raise Unreachable.
        """
        return {master.name: master.address for master in await self._cluster.masters()}

    async def topics(self, *, internal: bool = False) -> dict[str, RocketMQTopic]:
        """By name. internal: also RocketMQ's own, and those of retries and dead letters (`%RETRY%…`, `%DLQ%…`)."""
        masters = await self._cluster.masters()
        own = set() if internal else await self._own_topics(masters)
        found = await self._tables(masters, requests.all_topics(), "topicConfigTable")
        return {
            name: topic_of(str(self._cluster), name, by_broker)
            for name, by_broker in sorted(found.items())
            if internal or not (name in own or name.startswith("%"))
        }

    async def create_topic(self, name: str, *, accepts: str = "NORMAL", queues: int = 8) -> None:
        """Creates it on each master, or changes it there.

        accepts: NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY, LITE or MIXED. queues: of each master. Clients of a proxy
        can use it when their route is looked up next: at once if the proxy has not known the topic.
        """
        require_text("topic", name)
        require_whole("queues", queues, 1, 1_024)
        settings = topic_settings(name, queues, READ_AND_WRITE)
        request = requests.write_topic(f"create topic {name!r}", settings, accepts)
        for master in await self._cluster.masters():
            await master.ask(request)

    async def set_topic_permission(self, name: str, permission: Permission) -> None:
        """What clients may do with it; its queues and its type stay. `Permission.READ` stops producers.

        A proxy in a process of its own notices it when it looks up its routes again, within about 20 s.
        """
        masters = await self._cluster.masters()
        found = await self._found(masters, requests.all_topics(), "topicConfigTable", "topic", name)
        for master in masters:
            if master.name in found:
                with answers.reading(master.address):
                    settings = {**found[master.name], "perm": int(permission)}
                    request = requests.write_topic(f"change topic {name!r}", settings)
                await master.ask(request)

    async def delete_topic(self, name: str) -> None:
        """With its messages. Nothing happens if it does not exist."""
        for master in await self._cluster.masters():
            await master.ask(requests.delete_topic(name))
        await self._cluster.tell_name_servers(requests.forget_topic(name))

    async def groups(self) -> dict[str, RocketMQGroup]:
        """By name."""
        found = await self._tables(await self._cluster.masters(), requests.all_groups(), "subscriptionGroupTable")
        return {name: group_of(str(self._cluster), name, by_broker) for name, by_broker in sorted(found.items())}

    async def create_group(
        self,
        name: str,
        *,
        max_attempts: int = 17,
        retries: Iterable[float | timedelta] | ExponentialBackoff = (),
        in_order: bool = False,
    ) -> None:
        """Creates it on each master, or changes it there; its consumers may receive then.

        max_attempts: the first delivery included; a message with more becomes a dead letter. retries: seconds before
        each further attempt, or a back-off, whose multiplier is rounded down; empty: RocketMQ's usual ones.
        in_order: its consumers read message groups in order.
        """
        require_text("group", name)
        require_whole("max_attempts", max_attempts, 1, ATTEMPTS_MAX)
        request = requests.write_group(
            f"create group {name!r}", group_settings(name, max_attempts, retries, in_order=in_order)
        )
        for master in await self._cluster.masters():
            await master.ask(request)

    async def set_group_enabled(self, name: str, enabled: bool) -> None:
        """Whether its consumers receive. Those that are connected stay so, and go on within a second afterwards; what
        they hold they may ack and give back all the time."""
        masters = await self._cluster.masters()
        found = await self._found(masters, requests.all_groups(), "subscriptionGroupTable", "group", name)
        for master in masters:
            if master.name in found:
                settings = {**found[master.name], "consumeEnable": enabled}
                await master.ask(requests.write_group(f"change group {name!r}", settings))

    async def delete_group(self, name: str) -> None:
        """With its progress. Nothing happens if it does not exist."""
        for master in await self._cluster.masters():
            await master.ask(requests.delete_group(name))

    async def set_start(self, group: str, topic: str, edge: Literal["BEGINNING", "END"] = "BEGINNING") -> None:
        """Where the group reads the topic: from its first stored message, or from the next one that is sent.

        For a new group, before its consumers receive: else RocketMQ begins at the end of a topic that is larger than
        its cache. A group that has read gets messages again, or misses some.
        """
        if edge not in ("BEGINNING", "END"):
            raise ValueError(f"edge is {edge!r}; it must be 'BEGINNING' or 'END'")
        masters = await self._cluster.masters()
        found = await self._found(masters, requests.all_topics(), "topicConfigTable", "topic", topic)
        for master in masters:
            with answers.reading(master.address):
                queue_count = int(found[master.name]["readQueueNums"]) if master.name in found else 0
            for queue_id in range(queue_count):
                answer = await master.ask(requests.edge_offset(topic, queue_id, at_end=edge == "END"))
                offset = max(answers.offset(master.address, answer.fields), 0)
                await master.ask(requests.write_offset(group, topic, queue_id, offset))

    async def create_retry_topic(self, group: str, topic: str) -> str:
        """Makes the topic from which POP consumers of a group get the retries of a topic, and returns its name.

        Messages that are sent to it go to the consumers of this group alone, as messages of `topic`, with the attempt
        after the one that they were sent with. Brokers take what follows `%RETRY%` for the name of a group, which must
        exist: it is made as well, with any number of attempts. Nothing changes if both exist.
        """
        helper = f"{group}_{topic}"
        name = RETRY_PREFIX + helper
        masters = await self._cluster.masters()
        topics = await self._tables(masters, requests.all_topics(), "topicConfigTable")
        groups = await self._tables(masters, requests.all_groups(), "subscriptionGroupTable")
        new_topic = requests.write_topic(f"create topic {name!r}", topic_settings(name, 1, READ_AND_WRITE))
        new_group = requests.write_group(
            f"create group {helper!r}", group_settings(helper, ATTEMPTS_MAX, (), in_order=False)
        )
        for master in masters:
            if master.name not in groups.get(helper, {}):
                await master.ask(new_group)
            if master.name not in topics.get(name, {}):
                await master.ask(new_topic)
        return name

    async def stored(self, topic: str) -> int:
        """How many messages the topic ever stored, on all masters; 0 if it does not exist."""
        masters = await self._cluster.masters()
        found = (await self._tables(masters, requests.all_topics(), "topicConfigTable")).get(topic, {})
        count = 0
        for master in masters:
            if master.name in found:
                answer = await master.ask(requests.topic_stats(topic))
                count += sum(answers.end_offsets(master.address, answer.body).values())
        return count

    async def delayed(self, topic: str) -> int:
        """How many messages of the topic the timers of its brokers hold: delayed ones that are not due."""
        count = 0
        for master in await self._cluster.masters():
            answer = await master.ask(requests.timer_metrics())
            count += answers.delayed(master.address, answer.body, topic)
        return count

    async def backlog(self, group: str, topic: str) -> RocketMQBacklog:
        """What the group has not finished in the topic. Raises NotFound if the topic does not exist."""
        ready = retrying = waiting = 0
        masters = await self._cluster.masters()
        await self._found(masters, requests.all_topics(), "topicConfigTable", "topic", topic)
        retry_topics = [f"{RETRY_PREFIX}{group}_{topic}", f"{RETRY_PREFIX}{group}+{topic}", RETRY_PREFIX + group]
        for master in masters:
            answer = await master.ask(requests.timer_metrics())
            waiting += answers.waiting(master.address, answer.body)
            answer = await master.ask(requests.consume_stats(group, [topic, *retry_topics]))
            counts = await self._counts(master, answers.progress(master.address, answer.body))
            ready += counts.pop(topic, 0)
            retrying += sum(counts.values())
        return RocketMQBacklog(ready, retrying, waiting)

    async def connections(self, group: str) -> list[RocketMQConsumer]:
        """The consumers of a group that brokers know, each once, by their ids."""
        found: dict[str, RocketMQConsumer] = {}
        for master in await self._cluster.masters():
            try:
                answer = await master.ask(requests.consumer_connections(group))
            except RefusedByBroker as refusal:
                if refusal.code != CONSUMER_NOT_ONLINE:
                    raise
            else:
                found |= {each.client_id: each for each in answers.consumers(master.address, answer.body)}
        return [found[client_id] for client_id in sorted(found)]

    async def _counts(self, master: Master, progress: list[answers.GroupOffsets]) -> dict[str, int]:
        """By topic: the messages that are stored, and that the group has not received."""
        counts: dict[str, int] = {}
        for topic in {queue.topic for queue in progress}:
            answer = await master.ask(requests.topic_stats(topic))
            first = answers.first_offsets(master.address, answer.body)
            counts[topic] = sum(
                max(queue.end - max(queue.next, first.get(queue.queue_id, 0)), 0)
                for queue in progress
                if queue.topic == topic
            )
        return counts

    async def _own_topics(self, masters: list[Master]) -> set[str]:
        """Those that RocketMQ keeps for itself."""
        found: set[str] = set()
        for master in masters:
            found |= answers.names(master.address, (await master.ask(requests.system_topics())).body)
        return found

    async def _tables(
        self, masters: list[Master], request: requests.RemotingRequest, table: str
    ) -> dict[str, dict[str, Mapping[str, Any]]]:
        """By name, then by broker: the settings of all topics or groups."""
        found: dict[str, dict[str, Mapping[str, Any]]] = {}
        for master in masters:
            answer = await master.ask(request)
            for name, settings in answers.tables(master.address, answer.body, table).items():
                found.setdefault(name, {})[master.name] = settings
        return found

    async def _found(
        self, masters: list[Master], request: requests.RemotingRequest, table: str, kind: str, name: str
    ) -> dict[str, Mapping[str, Any]]:
        """By broker. Raises NotFound if no master has it."""
        found = (await self._tables(masters, request, table)).get(name)
        if found is None:
            raise NotFound(f"{kind} {name!r} does not exist in {self._cluster}; create it, or correct its name")
        return found
