"""Consumes the messages of queues with a listener, concurrently or in order.

process_queue        the messages of a queue that are fetched and not finished, and its progress
listener             the types of listeners, their contexts and their results
context              the parts that both ways of consuming share: `concurrently` and `orderly`
locks                the locks of queues that are consumed in order
statistics           pulls and consumed messages of the last minute
"""
