"""Faults that show themselves in what programs say: a server fails programs alone, or popclient fails in one."""

from __future__ import annotations

import itertools
from typing import Any

from proof.history.scenes import Scene
from proof.torture import client_program
from proof.torture.client_processes import KINDS, SIMPLE
from proof.torture.faults import fault, module
from proof.torture.lite import LITE_TOPICS


def _acks_of_programs_ignored() -> None:
    """So only what a program says can show it."""
    rpc = module("popserver.settling.rpc")
    acked, calls = rpc.SettleMethods.ack_message, itertools.count()  # the first one too: some programs live for few

    async def ignores(methods: Any, request: Any, caller: Any) -> Any:
        if _is_a_program(caller) and next(calls) % 3 == 0:
            return rpc.wire.AckMessageResponse(
                status=rpc.status.OK,
                entries=[
                    rpc.wire.AckMessageResultEntry(
                        message_id=each.message_id, receipt_handle=each.receipt_handle, status=rpc.status.OK
                    )
                    for each in request.entries
                ],
            )
        return await acked(methods, request, caller)

    rpc.SettleMethods.ack_message = ignores


# The acks of the other programs are confirmed to nobody.
for _scene, _kinds in ((Scene.PLAIN, (*SIMPLE, "push")), (Scene.LITE, ("lite", "lite push"))):
    for _kind in _kinds:
        fault(f"acks of {_kind} are answered and not carried out", _scene, "I5", program=_kind)(
            _acks_of_programs_ignored
        )


def _property_changed() -> None:
    """Programs get messages with another property. No client can see that, because no digest covers it."""
    methods = module("popserver.receiving.rpc").ReceiveMethods
    received = methods._deliveries

    def changed(delivery: Any) -> Any:
        stored = delivery.stored
        message = stored.message._replace(properties={**stored.message.properties, "who": "nobody"})
        return delivery._replace(stored=stored._replace(message=message))

    async def other(itself: Any, request: Any, caller: Any, *rest: Any, **more: Any) -> Any:
        got = await received(itself, request, caller, *rest, **more)
        return [changed(each) for each in got] if _is_a_program(caller) else got

    methods._deliveries = other


for _kind in ("java push", "go push"):
    fault(f"messages of {_kind} have another property", Scene.PLAIN, "I2", program=_kind)(_property_changed)


def _decisions_of_programs_ignored() -> None:
    rpc = module("popserver.producing.rpc")
    ended = rpc.ProducerMethods.end_transaction

    async def ignores(methods: Any, request: Any, caller: Any) -> Any:
        if _is_a_program(caller):
            return rpc.wire.EndTransactionResponse(status=rpc.status.OK)
        return await ended(methods, request, caller)

    rpc.ProducerMethods.end_transaction = ignores


for _kind_of_producer in KINDS[Scene.TRANSACTIONS]:
    fault(
        f"transactions of {_kind_of_producer} end and are not decided", Scene.TRANSACTIONS, "I1", "I2",
        program=_kind_of_producer,
    )(_decisions_of_programs_ignored)  # fmt: skip


@fault("a push consumer gives its listener a message group at once", Scene.FIFO, "I6", program="push")
def _listener_out_of_order() -> None:
    dispatcher = module("popclient._push.dispatcher").Dispatcher
    arrived = dispatcher.arrived

    def as_if_alone(itself: Any, views: Any) -> None:
        for view in views:
            view._wire.system_properties.ClearField("message_group")
        arrived(itself, views)

    dispatcher.arrived = as_if_alone


@fault("a member commits what it has not consumed", Scene.QUEUES, "I12", program="member")
def _commits_ahead() -> None:
    context = module("popclient._consume.context").ConsumeContext
    note = context.note_progress
    context.note_progress = lambda itself, queue, offset, **more: note(itself, queue, offset + 2, **more)


@fault("a member that is gone keeps its queues", Scene.QUEUES, "I14", program="member")
def _gone_and_there() -> None:
    module("popserver.members.flow").GroupMembers.leave = lambda _itself, _client_id: None


@fault("a member's batch leaves out its first message", Scene.QUEUES, "I1", "I12", program="member")
def _batch_leaves_out() -> None:
    program = module(client_program.__name__).MemberProgram
    consume = program._consume
    program._consume = lambda itself, messages, context: consume(itself, messages[1:], context)


@fault("an unsubscription is answered and not carried out", Scene.LITE, "I2")
def _unsubscription_ignored() -> None:
    flow = module("popserver.lite.flow")
    change = flow.LiteSubscriptions._change

    async def ignores(itself: Any, group: Any, topic: Any, key: Any, action: Any, *rest: Any) -> None:
        if action is not flow.LiteAction.PARTIAL_REMOVE:
            await change(itself, group, topic, key, action, *rest)

    flow.LiteSubscriptions._change = ignores


@fault("a lite topic stays with the client that had it first", Scene.LITE, "I2")
def _nothing_is_taken() -> None:
    module("popserver.lite.subscriptions")._take_over = lambda _tx, request, others: (
        {name for _, name in others} if request.is_complete else set()
    )


def _all_lite_topics() -> None:
    """A program that subscribes to one gets all."""
    rpc = module("popserver.lite.rpc")
    sync = rpc.LiteMethods.sync_lite_subscription

    async def to_all(methods: Any, request: Any, caller: Any) -> Any:
        if _is_a_program(caller) and request.lite_topic_set:
            request.lite_topic_set.extend(LITE_TOPICS)
        return await sync(methods, request, caller)

    rpc.LiteMethods.sync_lite_subscription = to_all


for _lite_consumer in KINDS[Scene.LITE]:
    fault(f"a program, {_lite_consumer}, gets all lite topics", Scene.LITE, "I2", program=_lite_consumer)(
        _all_lite_topics
    )


@fault("an answer has its lite topics backwards", Scene.LITE, "I6")
def _lite_topics_backwards() -> None:
    methods = module("popserver.receiving.rpc").ReceiveMethods
    received = methods._deliveries

    async def backwards(*given: Any, **more: Any) -> Any:
        return (await received(*given, **more))[::-1]

    methods._deliveries = backwards


def _is_a_program(caller: Any) -> bool:
    """Not a client of the load."""
    return not caller.client_id.startswith(("consumer-", "producer-"))
