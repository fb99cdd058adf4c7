"""What a pull says beyond PullMessage's own words (requirements B3, B21, B22); other servers do not heed it."""

from __future__ import annotations

from datetime import timedelta

from popclient._queues.sys_flag import build_sys_flag
from popproto.v1 import legacy_pb2 as legacy


def pull_extras(
    *,
    hold: timedelta,
    commit_offset: int = 0,
    resets: int = 0,
    sub_version: int = 0,
    post_subscription: bool = False,
    generation: int = 0,
    max_bytes: int = 0,
) -> legacy.PullExtras:
    """The extras of one pull, its sysFlag reckoned from them.

    hold: how long the server may hold the pull; zero: not at all.
    commit_offset: progress to commit on the way; 0 or below carries none: who has consumed nothing commits nothing.
    resets: of the progress that `commit_offset` continues.
    sub_version: of the subscription that the pull stands on, epoch milliseconds.
    post_subscription: is the filter in the pull meant to take the place of the one in the client's settings?
    generation: of the topic that the offsets belong to; 0 where it is not known.
    max_bytes: of bodies in the answer, unless the first message is larger; 0 leaves it to the server.
    """
    return legacy.PullExtras(
        sys_flag=build_sys_flag(
            commit_offset=commit_offset > 0, suspend=hold > timedelta(0), subscription=post_subscription
        ),
        commit_offset=max(commit_offset, 0),
        resets=resets,
        sub_version=sub_version,
        generation=generation,
        max_bytes=max_bytes,
    )
