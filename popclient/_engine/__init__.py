"""The push consumer's core, in one event loop; the synchronous and the asyncio PushConsumer are its two faces.

    assignments ─ pollers ─ backlog ─ dispatch ─ runner (threads or tasks) ─ listener
                     ▲         ▲          │
                    room ◄─────┴─ verdicts: ack, fail, give back ◄┘

A message takes room from its arrival until the server has answered what became of it.
"""
