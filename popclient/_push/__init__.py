"""The push consumer: `core` is its life.

    assignments ─ polls ─ backlog ─ dispatcher ─ runner (threads or tasks) ─ listener
                    ▲        ▲          │
                  flow ◄─────┴─ outcomes: ack, fail, give back ◄┘

A message counts in the budget of `popclient._engine.flow` from its arrival until the server has answered its outcome.
"""
