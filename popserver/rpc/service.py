"""The protocol's table of contents: every method of MessagingService, in the proto's order."""

from __future__ import annotations

from popserver.rpc import consuming, later, needs
from popserver.rpc.calls import AnyMethod, ConversationMethod, Method, StreamMethod
from popserver.rpc.consuming import Consuming
from popserver.rpc.offsets import Offsets
from popserver.rpc.producing import Producing
from popserver.rpc.pulling import Pulling
from popserver.rpc.routing import Routing
from popserver.rpc.session import Session


def messaging_methods(
    routing: Routing, session: Session, producing: Producing, consumer: Consuming, pulling: Pulling, offsets: Offsets
) -> dict[str, AnyMethod]:
    """Every method of the service."""
    return {
        "QueryRoute": Method(routing.query_route, needs.route),
        "Heartbeat": Method(session.heartbeat, needs.group_if_named, anonymous=True),
        "SendMessage": Method(producing.send_message, needs.send, bytes_max=producing.bytes_max),
        "QueryAssignment": Method(routing.query_assignment, needs.consume),
        "ReceiveMessage": StreamMethod(
            consumer.receive_message,
            needs.consume_message_queue,
            refuse=consumer.refuse_to_receive,
            hold_up=consumer.hold_up,
        ),
        "AckMessage": Method(consumer.ack_message, needs.consume),
        "ForwardMessageToDeadLetterQueue": Method(consumer.forward_to_dead_letter_queue, needs.consume),
        "PullMessage": StreamMethod(pulling.pull_message, needs.consume_message_queue),
        "UpdateOffset": Method(offsets.update_offset, needs.consume_message_queue),
        "GetOffset": Method(offsets.get_offset, needs.consume_message_queue),
        "QueryOffset": Method(offsets.query_offset, needs.read_message_queue),
        "EndTransaction": Method(producing.end_transaction, needs.publish),
        "Telemetry": ConversationMethod(session.telemetry, session.hold_up),
        "NotifyClientTermination": Method(session.notify_client_termination, needs.own_client),
        "ChangeInvisibleDuration": Method(
            consumer.change_invisible_duration, needs.consume, refuse=consuming.refuse_to_change, echoes=True
        ),
        "RecallMessage": Method(producing.recall_message, needs.publish),
        "SyncLiteSubscription": Method(later.sync_lite_subscription, needs.consume),
    }
