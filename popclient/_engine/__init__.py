"""The engine of the consumers: polls, flow control, the backlog, the runner, deadlines and outcomes.

A simple consumer is `simple`: its `polls` receive, and it settles by `settle`. A push consumer is `push`:

    assignments ─ polls ─ backlog ─ dispatcher ─ runner (threads or tasks) ─ listener
                    ▲        ▲          │
                  flow ◄─────┴─ outcomes: ack, fail, give back ◄┘

Both receive by `receive`: one long poll, with what the server has granted to a cancelled one.

A message counts in the budget of `flow` from its arrival until the server has answered what became of it.

The queue consumers (`popclient._queues`) share `flow`, `runner`, `interceptors` and `clock`. Their backlog is another
one on purpose: a push consumer's is keyed by message group and settles by receipt handle, a queue's is keyed by offset
and settles by the lowest offset that is not finished.
"""
