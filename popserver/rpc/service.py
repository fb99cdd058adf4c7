"""The protocol's table of contents: every method of MessagingService, in the proto's order."""

from __future__ import annotations

from popserver.rpc import consuming, later
from popserver.rpc.calls import Verb
from popserver.rpc.consuming import Consuming
from popserver.rpc.offsets import Offsets
from popserver.rpc.producing import Producing
from popserver.rpc.pulling import Pulling
from popserver.rpc.routing import Routing
from popserver.rpc.session import Session


def verbs(
    routing: Routing, session: Session, producing: Producing, consumer: Consuming, pulling: Pulling, offsets: Offsets
) -> dict[str, Verb]:
    return {
        "QueryRoute": Verb(routing.query_route),
        "Heartbeat": Verb(session.heartbeat, anonymous=True),
        "SendMessage": Verb(producing.send_message, bytes_max=producing.bytes_max),
        "QueryAssignment": Verb(routing.query_assignment),
        "ReceiveMessage": Verb(consumer.receive_message, consumer.refuse_to_receive, hold_up=consumer.hold_up),
        "AckMessage": Verb(consumer.ack_message),
        "ForwardMessageToDeadLetterQueue": Verb(consumer.forward_to_dead_letter_queue),
        "PullMessage": Verb(pulling.pull_message),
        "UpdateOffset": Verb(offsets.update_offset),
        "GetOffset": Verb(offsets.get_offset),
        "QueryOffset": Verb(offsets.query_offset),
        "EndTransaction": Verb(producing.end_transaction),
        "Telemetry": Verb(session.telemetry, hold_up=session.hold_up),
        "NotifyClientTermination": Verb(session.notify_client_termination),
        "ChangeInvisibleDuration": Verb(consumer.change_invisible_duration, consuming.refuse_to_change, echoes=True),
        "RecallMessage": Verb(producing.recall_message),
        "SyncLiteSubscription": Verb(later.sync_lite_subscription),
    }
