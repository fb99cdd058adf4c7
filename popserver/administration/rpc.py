"""popmq.v1.Admin: the administration of this server, on the same port as messages.

The calls need no client id, because an operator is not a client of the messaging protocol. All lists are limited; if
an answer is not complete, its status message says so.
"""

from __future__ import annotations

from collections.abc import Callable

from popproto.v1 import admin_pb2 as wire
from popproto.v2 import definition_pb2 as pb
from popserver.access import rights
from popserver.administration import convert as admin_convert
from popserver.administration.find import MessageSearch
from popserver.administration.flow import PAGE_MAX, Administration
from popserver.administration.readiness import Readiness
from popserver.catalog.groups import UpdateGroup
from popserver.cluster.servers import Servers
from popserver.engine.meters import Histogram
from popserver.engine.undelivered import Undelivered
from popserver.maintenance.patrol import Patrol
from popserver.model.errors import AlreadyExists, BadRequest, Unsupported
from popserver.model.group import ConsumeFrom, HistoryLevel, LiteModel, NewGroup
from popserver.model.retry import RetryPolicy
from popserver.model.topic import NewTopic
from popserver.transport import convert, status
from popserver.transport.calls import AnyMethod, Caller, Method


class AdminMethods:
    """One method per RPC, in the proto's order."""

    def __init__(
        self,
        operations: Administration,
        readiness: Readiness,
        version: str,
        servers: Servers,
        commits: Histogram,
        undelivered: Undelivered,
        patrol: Patrol,
        drain: Callable[[], int] | None,
    ) -> None:
        """`drain` begins a handover, and returns its ms; None if the server runs inside another program."""
        self._operations = operations
        self._undelivered = undelivered
        self._patrol = patrol
        self._readiness = readiness
        self._commits = commits
        self._version = version
        self._servers = servers
        self._drain = drain
        self.methods: dict[str, AnyMethod] = {
            "CreateTopic": Method(self.create_topic, rights.admin),
            "UpdateTopic": Method(self.update_topic, rights.admin),
            "DeleteTopic": Method(self.delete_topic, rights.admin),
            "GetTopic": Method(self.get_topic, rights.admin),
            "ListTopics": Method(self.list_topics, rights.admin),
            "CreateGroup": Method(self.create_group, rights.admin),
            "UpdateGroup": Method(self.update_group, rights.admin),
            "DeleteGroup": Method(self.delete_group, rights.admin),
            "GetGroup": Method(self.get_group, rights.admin),
            "ListGroups": Method(self.list_groups, rights.admin),
            "PeekMessages": Method(self.peek_messages, rights.admin),
            "GetMessage": Method(self.get_message, rights.admin),
            "ListScheduled": Method(self.list_scheduled, rights.admin),
            "CancelScheduled": Method(self.cancel_scheduled, rights.admin),
            "Why": Method(self.why, rights.admin),
            "ListHolds": Method(self.list_holds, rights.admin),
            "ListLockedMessageGroups": Method(self.list_locked_message_groups, rights.admin),
            "FindMessages": Method(self.find_messages, rights.admin),
            "TryFilter": Method(self.try_filter, rights.admin),
            "GetStatus": Method(self.get_status, rights.admin),
            "GetHealth": Method(self.get_health, rights.admin),
            "ConfirmClock": Method(self.confirm_clock, rights.admin),
            "RepairStore": Method(self.repair_store, rights.admin),
            "DrainServer": Method(self.drain_server, rights.admin),
        }

    async def create_topic(self, request: wire.CreateTopicRequest, caller: Caller) -> wire.CreateTopicResponse:
        default = NewTopic(caller.resource(request.topic))
        new = default._replace(
            queue_count=request.queue_count or default.queue_count,
            accepts=admin_convert.accepted_types(request.accept_message_types) or default.accepts,
            lite_expires_ms=admin_convert.lite_expires_ms(request),
        )
        try:
            facts = await self._operations.create_topic(new)
        except AlreadyExists as refusal:
            raise BadRequest(refusal.sentence) from None
        return wire.CreateTopicResponse(status=status.OK, topic=admin_convert.topic(facts))

    async def update_topic(self, request: wire.UpdateTopicRequest, caller: Caller) -> wire.UpdateTopicResponse:
        facts = await self._operations.update_topic(
            caller.resource(request.topic),
            request.queue_count if request.HasField("queue_count") else None,
            admin_convert.accepted_types(request.accept_message_types) or None,
            admin_convert.lite_expires_ms(request),
            request.closed_because if request.HasField("closed_because") else None,
        )
        return wire.UpdateTopicResponse(status=status.OK, topic=admin_convert.topic(facts))

    async def delete_topic(self, request: wire.DeleteTopicRequest, caller: Caller) -> wire.DeleteTopicResponse:
        await self._operations.delete_topic(caller.resource(request.topic))
        return wire.DeleteTopicResponse(status=status.OK)

    async def get_topic(self, request: wire.GetTopicRequest, caller: Caller) -> wire.GetTopicResponse:
        facts = await self._operations.topic(caller.resource(request.topic))
        answer = wire.GetTopicResponse(status=status.OK, topic=admin_convert.topic(facts))
        answer.topic.queues.extend(
            wire.Queue(id=each.number, min_offset=each.min_offset, max_offset=each.next_offset) for each in facts.ranges
        )
        return answer

    async def list_topics(self, request: wire.ListTopicsRequest, caller: Caller) -> wire.ListTopicsResponse:
        """List those of the namespace in the call's header, or all."""
        after = caller.resource(request.after) if request.HasField("after") else None
        topics, count = await self._operations.topics(caller.namespace or None, after)
        answer = wire.ListTopicsResponse(
            status=_listed(len(topics), count, "topics") if after is None else status.OK,
            topics=map(admin_convert.topic, topics),
        )
        if len(topics) == PAGE_MAX:
            answer.next_after.CopyFrom(convert.as_resource(topics[-1].topic.name))
        return answer

    async def create_group(self, request: wire.CreateGroupRequest, caller: Caller) -> wire.CreateGroupResponse:
        default, fifo_ms = NewGroup(caller.resource(request.group)), admin_convert.fifo_interval_ms(request)
        new = NewGroup(
            default.name,
            RetryPolicy(
                request.max_attempts or default.retry.max_attempts,
                admin_convert.intervals_ms(request) or default.retry.intervals_ms,
                default.retry.fifo_interval_ms if fifo_ms is None else fifo_ms,
            ),
            convert.choice("consume_from", request.consume_from, ConsumeFrom)
            if request.consume_from
            else default.consume_from,
            convert.choice("history", request.history, HistoryLevel) if request.history else default.history,
            convert.choice("lite", request.lite, LiteModel) if request.lite else None,
        )
        try:
            group = await self._operations.create_group(new)
        except AlreadyExists as refusal:
            raise BadRequest(refusal.sentence) from None
        return wire.CreateGroupResponse(status=status.OK, group=admin_convert.group(group))

    async def update_group(self, request: wire.UpdateGroupRequest, caller: Caller) -> wire.UpdateGroupResponse:
        change = UpdateGroup(
            caller.resource(request.group),
            request.max_attempts if request.HasField("max_attempts") else None,
            admin_convert.intervals_ms(request),
            convert.choice("history", request.history, HistoryLevel) if request.history else None,
            admin_convert.fifo_interval_ms(request),
            convert.choice("lite", request.lite, LiteModel) if request.lite else None,
        )
        group = await self._operations.update_group(change)
        return wire.UpdateGroupResponse(status=status.OK, group=admin_convert.group(group))

    async def delete_group(self, request: wire.DeleteGroupRequest, caller: Caller) -> wire.DeleteGroupResponse:
        await self._operations.delete_group(caller.resource(request.group))
        return wire.DeleteGroupResponse(status=status.OK)

    async def get_group(self, request: wire.GetGroupRequest, caller: Caller) -> wire.GetGroupResponse:
        facts = await self._operations.group(caller.resource(request.group))
        return wire.GetGroupResponse(status=status.OK, group=admin_convert.group_facts(facts))

    async def list_groups(self, request: wire.ListGroupsRequest, caller: Caller) -> wire.ListGroupsResponse:
        """List those of the namespace in the call's header, or all."""
        after = caller.resource(request.after) if request.HasField("after") else None
        groups, pauses, count = await self._operations.groups(caller.namespace or None, after)
        answer = wire.ListGroupsResponse(
            status=_listed(len(groups), count, "groups") if after is None else status.OK,
            groups=admin_convert.groups(groups, pauses),
        )
        if len(groups) == PAGE_MAX:
            answer.next_after.CopyFrom(convert.as_resource(groups[-1].name))
        return answer

    async def peek_messages(self, request: wire.PeekMessagesRequest, caller: Caller) -> wire.PeekMessagesResponse:
        found = await self._operations.peek(
            caller.resource(request.topic),
            request.queue_id if request.HasField("queue_id") else None,
            request.from_offset if request.HasField("from_offset") else None,
            request.max,
        )
        caller.carries(self._undelivered, sum(len(each.message.body) for each in found))
        return wire.PeekMessagesResponse(status=status.OK, messages=map(convert.found_message, found))

    async def get_message(self, request: wire.GetMessageRequest, caller: Caller) -> wire.GetMessageResponse:
        topic = caller.resource(request.topic) if request.HasField("topic") else None
        found = await self._operations.message(topic, request.message_id)
        return wire.GetMessageResponse(
            status=status.OK,
            message=convert.found_message(found.stored),
            states=map(admin_convert.state, found.states),
            history=map(admin_convert.step, found.steps),
        )

    async def why(self, request: wire.WhyRequest, caller: Caller) -> wire.WhyResponse:
        topic = caller.resource(request.topic) if request.HasField("topic") else None
        group = caller.resource(request.group)
        found = await self._operations.why(group, topic, request.message_id)
        return wire.WhyResponse(
            status=status.OK,
            sentence=found.sentence,
            evidence=[wire.Fact(name=name, value=value) for name, value in found.facts],
            history=map(admin_convert.step, found.steps),
        )

    async def list_holds(self, request: wire.ListHoldsRequest, caller: Caller) -> wire.ListHoldsResponse:
        topic = caller.resource(request.topic) if request.HasField("topic") else None
        found = await self._operations.holds(caller.resource(request.group), topic, request.max)
        return wire.ListHoldsResponse(status=status.OK, holds=map(admin_convert.hold, found))

    async def list_locked_message_groups(
        self, request: wire.ListLockedMessageGroupsRequest, caller: Caller
    ) -> wire.ListLockedMessageGroupsResponse:
        found = await self._operations.locked_groups(caller.resource(request.group), request.max)
        return wire.ListLockedMessageGroupsResponse(
            status=status.OK, message_groups=map(admin_convert.locked, found.shown), more=found.more
        )

    async def try_filter(self, request: wire.TryFilterRequest, caller: Caller) -> wire.TryFilterResponse:
        last_ms = convert.duration_ms(request.last) if request.HasField("last") else None
        topic = caller.resource(request.topic)
        trial = await self._operations.try_filter(topic, request.expression, last_ms, request.max)
        return wire.TryFilterResponse(
            status=status.OK,
            examined=trial.examined,
            matched=trial.matched,
            incomparable=trial.incomparable,
            complete=trial.complete,
            messages=[admin_convert.match(each, topic) for each in trial.newest],
        )

    async def find_messages(self, request: wire.FindMessagesRequest, caller: Caller) -> wire.FindMessagesResponse:
        asked = MessageSearch(
            request.key if request.HasField("key") else None,
            request.tag if request.HasField("tag") else None,
            request.where or None,
            convert.time_ms(request.since, "since") if request.HasField("since") else 0,
            convert.time_ms(request.until, "until") if request.HasField("until") else None,
            request.max,
            request.page,
            lite_topic=request.lite_topic if request.HasField("lite_topic") else None,
        )
        topic = caller.resource(request.topic) if request.HasField("topic") else None
        found = await self._operations.find(topic, asked)
        return wire.FindMessagesResponse(
            status=status.OK,
            examined=found.examined,
            matched=len(found.matches),
            complete=not found.next_page,
            messages=[admin_convert.match(each, name) for name, each in found.matches],
            next_page=found.next_page,
        )

    async def list_scheduled(self, request: wire.ListScheduledRequest, caller: Caller) -> wire.ListScheduledResponse:
        after_ms = convert.time_ms(request.after_due_at, "after_due_at") if request.HasField("after_due_at") else 0
        found = await self._operations.scheduled(
            caller.resource(request.topic), after_ms, request.after_id, request.max
        )
        return wire.ListScheduledResponse(status=status.OK, messages=map(admin_convert.scheduled, found))

    async def cancel_scheduled(
        self, request: wire.CancelScheduledRequest, caller: Caller
    ) -> wire.CancelScheduledResponse:
        cancelled = await self._operations.cancel(
            caller.resource(request.topic),
            request.message_ids,
            request.key if request.HasField("key") else None,
        )
        return wire.CancelScheduledResponse(status=status.OK, message_ids=cancelled)

    async def get_status(self, _request: wire.GetStatusRequest, _caller: Caller) -> wire.GetStatusResponse:
        now, space = await self._operations.status(), (await self._readiness.report()).space
        return wire.GetStatusResponse(
            status=status.OK,
            version=self._version,
            store=now.store,
            durability=now.durability,
            schema_revision=now.counts.revision,
            topics=now.counts.topics,
            groups=now.counts.groups,
            messages=now.counts.messages,
            appended=now.counts.appended,
            dead_letters=now.counts.dead_letters,
            parked_polls=now.parked_polls,
            connected_clients=now.connected_clients,
            discarded_transactions=now.discarded_transactions,
            lag=map(admin_convert.lag, now.lag),
            dead_elsewhere=map(admin_convert.dead_elsewhere, now.dead_elsewhere),
            hints=now.hints,
            budgets=map(admin_convert.budget, now.budgets),
            commit_times=admin_convert.histogram(self._commits),
            started_at=convert.timestamp(now.started_at_ms),
            now=convert.timestamp(now.now_ms),
            oldest_overdue=convert.duration(now.oldest_overdue_ms),
            storage=admin_convert.storage(now.counts.size_bytes, space),
            servers=[admin_convert.server(each, self._servers.server_id) for each in now.counts.servers],
        )

    async def get_health(self, _request: wire.GetHealthRequest, _caller: Caller) -> wire.GetHealthResponse:
        report = await self._readiness.report()
        return wire.GetHealthResponse(
            status=status.OK,
            live=self._readiness.is_live(),
            ready=report.is_ready,
            checks=[wire.HealthCheck(name=each.name, ok=each.ok, reason=each.sentence) for each in report.checks],
            warnings=report.warnings,
        )

    async def drain_server(self, _request: wire.DrainServerRequest, _caller: Caller) -> wire.DrainServerResponse:
        """A repeated request changes nothing. When it is answered, `GetStatus` shows that the server leaves."""
        if self._drain is None:
            raise Unsupported("this server is a part of another program; stop that program")
        if not self._servers.can_hand_over:
            raise BadRequest(
                "no other server on this database can take the clients over; start another one first (popmq serve),"
                " or stop this one with SIGTERM"
            )
        await self._servers.leave()
        return wire.DrainServerResponse(
            status=status.OK, address=self._servers.address, handover=convert.duration(self._drain())
        )

    async def confirm_clock(self, _request: wire.ConfirmClockRequest, _caller: Caller) -> wire.ConfirmClockResponse:
        return wire.ConfirmClockResponse(status=status.OK, sentence=await self._operations.confirm_clock())

    async def repair_store(self, request: wire.RepairStoreRequest, _caller: Caller) -> wire.RepairStoreResponse:
        found = await self._patrol.repair(dry_run=request.dry_run)
        return wire.RepairStoreResponse(
            status=_listed(len(found.rows), found.in_all, "rows"),
            rows=map(admin_convert.repaired, found.rows),
            found=found.in_all,
            repaired=found.repaired,
        )


def _listed(shown: int, count: int, what: str) -> pb.Status:
    return status.OK if shown == count else pb.Status(code=pb.OK, message=f"the first {shown} of {count} {what}")
