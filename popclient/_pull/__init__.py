"""The pull consumer: `core` is its life, `assignment` its queues, each with a fetcher (`fetch`).

`subscribe` shares queues with the other members of the group, `commit` knows their progress, and `listen` hands what is
fetched to a listener.
"""
