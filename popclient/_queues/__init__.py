"""Queue granularity: a member of a group owns whole queues, pulls each from an offset and commits the next one.

The pull consumer (`popclient._pull`) and the queue push consumer (`popclient._queue_push`) use these parts. Those that
decide something are pure: views, offsets and the time are arguments, and the same arguments lead to the same decision
on every member.

    subscription         what a consumer wants of a topic, and the topic of its group's retries
    allocation           which of the sorted queues belong to which of the sorted members
    sharing              what a member sees of the group, and its part of the queues
    process_queue        the messages of a queue that are fetched and not finished, and its progress
    pull                 one pull, and what its answer means
    start                where a queue begins if it has no progress, or its topic was recreated
    offsets              progress: kept by the server (remote_offsets), by a file (local_offsets), or by the user
    listener             what a listener is, what it is told and what it answers
    consume              what both ways of consuming need: consume_concurrently and consume_orderly
    locks                the locks of queues that are consumed in order
    calls, wire          the calls themselves, and how a server without them is recognized
"""
