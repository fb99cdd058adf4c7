"""Parts that several consumers share: receives, settling, flow control, runners of listeners, and the clock.

The simple consumer (`popclient._simple`) and the push consumer (`popclient._push`) receive by `receive`, one long poll,
with the messages that the server has granted to a cancelled one, and settle by `settle`. Consumers of lite topics
(`popclient._lite`) are both. The queue consumers (`popclient._pull`, `popclient._queue_push`) share `flow`, `runner`,
`interceptors` and `clock`. Their backlog is another one on purpose: a push consumer's is keyed by message group and
settles by receipt handle, a queue's is keyed by offset and settles by the lowest offset that is not finished.
"""
