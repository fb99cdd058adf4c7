"""apache.rocketmq.v2.Admin: subscriptions, and the consumers that are connected to this server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice

from popproto.v2 import admin_pb2 as wire
from popproto.v2 import definition_pb2 as pb
from popserver.access import rights
from popserver.administration.flow import Administration
from popserver.clients.commands import ANSWER_WITHIN_S, VERIFIED_WITHIN_S, Commands, Outcome, PrintThreads, TryMessage
from popserver.engine.reader import Reader
from popserver.filters.subscription import ClientKind, TopicFilter, shown_filter
from popserver.lite.facts import clients_of_lite_topic
from popserver.model.errors import BadRequest
from popserver.model.group import Mode, Model
from popserver.model.names import Resource, check_group, check_topic, topic_key
from popserver.rocketmq_admin import subscriptions
from popserver.rocketmq_admin.online import Declared, OnlineConsumer, OnlineConsumers, OwnedQueue, declared
from popserver.rocketmq_admin.subscriptions import LISTED_MAX, Subscribed
from popserver.transport import convert, status
from popserver.transport.calls import AnyMethod, Caller, Method

_MODELS = {Model.CLUSTERING: wire.CLUSTERING, Model.BROADCASTING: wire.BROADCASTING}
# RocketMQ's names: consoles show these properties, and compare these values.
_CONSUME_TYPES = {
    ClientKind.PUSH: "CONSUME_PASSIVELY",
    ClientKind.SIMPLE: "CONSUME_POP",
    ClientKind.PULL: "CONSUME_ACTIVELY",
    ClientKind.LITE_PUSH: "CONSUME_PASSIVELY",
    ClientKind.LITE_SIMPLE: "CONSUME_POP",
}


class ConsumerAdminMethods:
    """One method per RPC, in the proto's order."""

    def __init__(self, online: OnlineConsumers, commands: Commands, operations: Administration, reader: Reader) -> None:
        self._online = online
        self._commands = commands
        self._operations = operations
        self._reader = reader
        self.methods: dict[str, AnyMethod] = {
            "ListSubscription": Method(self.list_subscription, rights.admin),
            "DescribeSubscription": Method(self.describe_subscription, rights.admin),
            "ListConsumerConnection": Method(self.list_consumer_connection, rights.admin),
            "PrintThreadStackTrace": Method(self.print_thread_stack_trace, rights.admin),
            "VerifyMessage": Method(self.verify_message, rights.admin),
            "GetConsumerRunningInfo": Method(self.get_consumer_running_info, rights.admin),
        }

    async def list_subscription(
        self, request: wire.ListSubscriptionRequest, caller: Caller
    ) -> wire.ListSubscriptionResponse:
        """The subscriptions that the store has, and those that connected consumers declare."""
        group, topic = _asked(request, caller)
        online = self._online.of(group, None)
        alike = self._online.alike(each.role.group for each in online)
        by_group: dict[Resource, list[OnlineConsumer]] = {}
        for each in online:
            if topic is None or each.role.subscribes_to(topic):
                by_group.setdefault(each.role.group, []).append(each)
        roles = {name: [each.role for each in members] for name, members in by_group.items()}
        # The rest in the reader's thread: a group may have thousands of consumers with 1,024 topics each.
        return await self._reader.read(
            lambda conn: _list_subscriptions(subscriptions.of(conn, group, topic, roles), by_group, alike)
        )

    async def describe_subscription(
        self, request: wire.DescribeSubscriptionRequest, caller: Caller
    ) -> wire.DescribeSubscriptionResponse:
        """One entry for each topic of each consumer that is connected to this server."""
        group, topic = _asked(request, caller)
        await self._reader.read(partial(subscriptions.check_known, group_name=group, topic_name=topic))
        every = ((consumer, each) for consumer in self._online.of(group, topic) for each in consumer.filters_for(topic))
        entries = list(islice(every, LISTED_MAX + 1))
        alike = self._online.alike(consumer.role.group for consumer, _ in entries)
        # To write so many entries would stop the event loop.
        return await asyncio.to_thread(_describe_subscriptions, entries, alike)

    async def list_consumer_connection(
        self, request: wire.ListConsumerConnectionRequest, caller: Caller
    ) -> wire.ListConsumerConnectionResponse:
        group = caller.resource(request.group)
        topic = caller.resource(request.topic) if request.topic.name else None
        check_group(group)
        await self._reader.read(partial(subscriptions.check_known, group_name=group, topic_name=topic))
        found = self._online.of(group, topic)
        if request.liteTopic:
            if topic is None:
                raise BadRequest(
                    f"the request names lite topic '{request.liteTopic[:64]}' and no topic; name its topic"
                )
            getting = partial(clients_of_lite_topic, group_name=group, topic_name=topic, name=request.liteTopic)
            client_ids = await self._reader.read(getting)
            found = [each for each in found if client_ids is None or each.client.client_id in client_ids]
        return wire.ListConsumerConnectionResponse(
            status=_listed(len(found), "clients"), client_info=map(_client, found[:LISTED_MAX])
        )

    async def print_thread_stack_trace(
        self, request: wire.PrintThreadStackTraceRequest, caller: Caller
    ) -> wire.PrintThreadStackTraceResponse:
        self._check_client(request, caller)
        trace = await self._commands.ask(request.client_id, PrintThreads(), ANSWER_WITHIN_S)
        return wire.PrintThreadStackTraceResponse(status=status.OK, thread_stack_trace=str(trace))

    async def verify_message(self, request: wire.VerifyMessageRequest, caller: Caller) -> wire.VerifyMessageResponse:
        """The status is the outcome that the client reports."""
        self._check_client(request, caller)
        topic = caller.resource(request.topic) if request.topic.name else None
        found = await self._operations.message(topic, request.message_id)
        outcome = await self._commands.ask(request.client_id, TryMessage(found.stored), VERIFIED_WITHIN_S)
        if not isinstance(outcome, Outcome):
            raise BadRequest(
                f"client '{request.client_id}' answered with stack traces instead of a result; repeat the request"
            )
        return wire.VerifyMessageResponse(status=_status_of(outcome))

    async def get_consumer_running_info(
        self, request: wire.GetConsumerRunningInfoRequest, caller: Caller
    ) -> wire.GetConsumerRunningInfoResponse:
        group = caller.resource(request.group) if request.group.name else None
        consumer = self._online.named(request.client_id, group)
        client, role = consumer
        info = wire.ConsumerRunningInfo(
            properties={
                "PROP_CONSUME_TYPE": _CONSUME_TYPES[role.kind],
                "PROP_CLIENT_VERSION": client.version,
                "PROP_CONSUMEORDERLY": str(client.works_in_order).lower(),
            },
            message_queue_table=map(_queue_item, await self._online.queues_of(consumer)),
        )
        for each in role.subscription.filters:
            key = topic_key(each.topic, role.group)
            info.subscriptions[key].CopyFrom(convert.subscription_entry(each).expression)
        return wire.GetConsumerRunningInfoResponse(status=status.OK, consumer_running_info=info)

    def _check_client(
        self, request: wire.PrintThreadStackTraceRequest | wire.VerifyMessageRequest, caller: Caller
    ) -> None:
        """With a group only its consumers are asked; without one also producers."""
        if not request.client_id or request.group.name:
            self._online.named(request.client_id, caller.resource(request.group))


def _asked(
    request: wire.ListSubscriptionRequest | wire.DescribeSubscriptionRequest, caller: Caller
) -> tuple[Resource | None, Resource | None]:
    group = caller.resource(request.group) if request.group.name else None
    topic = caller.resource(request.topic) if request.topic.name else None
    if group is None and topic is None:
        raise BadRequest("the request names neither a topic nor a group; name at least one of them")
    if group is not None:
        check_group(group)
    if topic is not None:
        check_topic(topic)
    return group, topic


def _list_subscriptions(
    found: Sequence[Subscribed], online: Mapping[Resource, Sequence[OnlineConsumer]], alike: Mapping[Resource, bool]
) -> wire.ListSubscriptionResponse:
    """`alike`: of each group that has connected consumers, whether all have the same subscription."""
    infos = [
        _info(each, declared(online.get(each.group, []), each.topic), is_alike=alike.get(each.group, True))
        for each in found[:LISTED_MAX]
    ]
    return wire.ListSubscriptionResponse(status=_listed(len(found), "subscriptions"), subscription_info=infos)


def _describe_subscriptions(
    entries: Sequence[tuple[OnlineConsumer, TopicFilter]], alike: Mapping[Resource, bool]
) -> wire.DescribeSubscriptionResponse:
    return wire.DescribeSubscriptionResponse(
        status=_listed(len(entries), "subscriptions of clients"),
        client_subscription_info=[
            wire.DescribeSubscriptionResponse.ClientSubscriptionInfo(
                client_info=_client(consumer),
                subscription_info=_of_client(consumer, each, is_alike=alike[consumer.role.group]),
            )
            for consumer, each in entries[:LISTED_MAX]
        ],
    )


def _listed(count: int, what: str) -> pb.Status:
    return status.listed(count, LISTED_MAX, what, "name both a group and a topic")


def _info(found: Subscribed, declaration: Declared | None, *, is_alike: bool) -> wire.SubscriptionInfo:
    """A subscription as its group has it: with the filter of the first connected consumer."""
    info = wire.SubscriptionInfo(
        group=convert.as_resource(found.group),
        topic=convert.as_resource(found.topic),
        online=declaration is not None,
        message_model=_stored_model(found),
        subscription_consistency=is_alike,
    )
    if declaration is not None:
        filter_as_text = shown_filter(found.topic, declaration.filter)
        info.expression.CopyFrom(convert.subscription_entry(filter_as_text).expression)
        info.message_model = wire.LITE_SELECTIVE if found.is_lite else _MODELS[declaration.model]
        convert.set_ms(info.last_update_timestamp, declaration.last_seen_ms)
    return info


def _of_client(consumer: OnlineConsumer, wanted: TopicFilter, *, is_alike: bool) -> wire.SubscriptionInfo:
    return wire.SubscriptionInfo(
        group=convert.as_resource(consumer.role.group),
        topic=convert.as_resource(wanted.topic),
        expression=convert.subscription_entry(wanted).expression,
        online=True,
        last_update_timestamp=convert.timestamp(consumer.client.last_seen_ms),
        message_model=_model(consumer),
        subscription_consistency=is_alike,
    )


def _client(consumer: OnlineConsumer) -> wire.ClientInfo:
    client = consumer.client
    return wire.ClientInfo(
        client_id=client.client_id,
        version=client.version,
        language=client.language,
        hostname=client.hostname,
        egress_ip=client.address,
        message_model=_model(consumer),
    )


def _model(consumer: OnlineConsumer) -> wire.MessageModel.ValueType:
    return wire.LITE_SELECTIVE if consumer.role.kind.is_lite else _MODELS[consumer.role.model]


def _stored_model(found: Subscribed) -> wire.MessageModel.ValueType:
    if found.is_lite:
        return wire.LITE_SELECTIVE
    return wire.CLUSTERING if found.mode is Mode.POP else wire.MESSAGE_MODEL_UNSPECIFIED


def _queue_item(owned: OwnedQueue) -> wire.MessageQueueItem:
    return wire.MessageQueueItem(
        message_queue=convert.lone_queue(convert.as_resource(owned.topic), owned.queue.number),
        process_queue_info=wire.ProcessQueueInfo(commit_offset=owned.committed or 0, locked=owned.is_locked),
    )


def _status_of(outcome: Outcome) -> pb.Status:
    """A client may send any code. A code that could be this server's own would be misunderstood."""
    if outcome.code in _OUTCOMES:
        return pb.Status(code=outcome.code, message=outcome.sentence)  # type: ignore[arg-type]
    names = pb.Code.DESCRIPTOR.values_by_number
    code = names[outcome.code].name if outcome.code in names else str(outcome.code)
    return pb.Status(code=pb.FAILED_TO_CONSUME_MESSAGE, message=f"the client says {code}: {outcome.sentence}")


_OUTCOMES = frozenset({pb.OK, pb.FAILED_TO_CONSUME_MESSAGE, pb.NOT_IMPLEMENTED, pb.VERIFY_FIFO_MESSAGE_UNSUPPORTED})
