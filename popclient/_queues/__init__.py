"""Queue granularity: a member of a group owns whole queues, pulls each from an offset and commits the next one.

Here are the parts of it; the consumers build on them. Those that decide something are pure: views, offsets and the time
come in as arguments, and the same arguments lead to the same decision on every member.

    message_queue     one queue of a topic
    subscription      what a consumer wants of a topic, and the topic of its group's retries
    allocation        which of the sorted queues belong to which of the sorted members
    process_queue     what of a queue is fetched and not finished, and up to where it is consumed
    flow              when a queue is pulled no further for now
    pull_extras       what a pull says besides, and the bits of its sysFlag
    pull_status       what a pull's answer means
    consume_from      where a queue begins that has no progress
    generations       whether a topic is the one that was known, or was made anew
    offset_store      progress: kept by the server, by a file, or by whatever the user brings
    options           all that a user may set, checked

The calls themselves, and how a server that has none is told apart, are `calls` and `wire`. PullConsumer is `pull_core`:
its queues are in `assignment`, each with its `fetching`; `subscribing` shares them, `committing` knows their progress.

QueuePushConsumer is `push_core`, put together in `parts`. `rebalance` takes up and gives up queues, by `sharing`,
`locking` and `beginning`, when `rebalance_service` says; `factory` has what the consumers of an event loop share.
`pulling` and `pull_results` are the loop of pulls; `concurrent` and `orderly` take messages to the listener
(`listening`, `running`, `consuming`).
"""
