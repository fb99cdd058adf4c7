"""Queue granularity: a member of a group owns whole queues, pulls each from an offset and commits the next one.

The pull consumer (`popclient._pull`) and the queue push consumer (`popclient._queue_push`) use these calls, and with
them `popclient._progress` and `popclient._consume`. Parts that decide something are pure: views, offsets and the time
are arguments, and the same arguments lead to the same decision on every member.

    subscription         the subscription to a topic, and the topic of the group's retries
    allocation           the share of a member: which of the sorted queues belong to which of the sorted members
    pull                 one pull, and the meaning of its answer
    calls, wire          the other calls, and how a server without them is recognized
"""
