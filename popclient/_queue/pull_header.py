"""What one pull says (mission row B3).

PullMessage has words for where and how much; what else the field's pulls say travels in the call's metadata, which
other servers do not heed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from popclient import _convert as convert
from popclient._queue.message_queue import MessageQueue
from popclient._queue.subscription import Subscription
from popclient._queue.sys_flag import SysFlag, build_sys_flag
from popproto.v1 import legacy_pb2 as legacy
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc

PULL_EXTRAS_HEADER: Final = "popmq-pull-bin"
PULL_BATCH_SIZE: Final = 32
SUSPEND_TIMEOUT: Final = timedelta(seconds=15)


@dataclass(frozen=True, slots=True)
class PullHeader:
    """One pull of one queue.

    queue_offset: from where. max_msg_nums: how many at most. suspend_timeout: how long the server may hold it; zero:
    not at all. commit_offset: progress to commit with it; 0 carries none, since a group that has consumed nothing has
    nothing to commit (mission row B21). resets: of the progress that `commit_offset` continues.
    post_subscription: does the filter go with every pull (mission row B22)? PullMessage has no other way to say one, so
    it is always there; this sets the bit, by which the server takes it in place of the one that the settings told.
    """

    group: str
    mq: MessageQueue
    queue_offset: int
    subscription: Subscription
    max_msg_nums: int = PULL_BATCH_SIZE
    suspend_timeout: timedelta = SUSPEND_TIMEOUT
    commit_offset: int = 0
    resets: int = 0
    post_subscription: bool = False

    @property
    def sys_flag(self) -> SysFlag:
        return build_sys_flag(
            commit_offset=self.commit_offset > 0,
            suspend=self.suspend_timeout > timedelta(0),
            subscription=self.post_subscription,
        )

    def request(self, namespace: str) -> rpc.PullMessageRequest:
        """The part that every server of the protocol reads."""
        request = rpc.PullMessageRequest(
            group=convert.resource(self.group, namespace),
            message_queue=pb.MessageQueue(topic=convert.resource(self.mq.topic, namespace), id=self.mq.queue_id),
            offset=self.queue_offset,
            batch_size=self.max_msg_nums,
            filter_expression=convert.filter_expression(self.subscription.filter_expression),
        )
        request.long_polling_timeout.FromTimedelta(self.suspend_timeout)
        return request

    def extras(self) -> legacy.PullExtras:
        """The part for a PopMQ server."""
        return legacy.PullExtras(
            sys_flag=self.sys_flag,
            commit_offset=self.commit_offset,
            resets=self.resets,
            sub_version=self.subscription.sub_version,
        )

    def metadata(self) -> tuple[str, bytes]:
        """The extras as a header of the call."""
        return PULL_EXTRAS_HEADER, self.extras().SerializeToString()
