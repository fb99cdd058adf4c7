"""Hands messages over from one server to another, in any direction between PopMQ and RocketMQ, while producers and
consumers run: `popmq mirror`.

A message of a consumer group is received at the source as that group, stored at the target, and only then acked. So
nothing is lost, whatever is killed; what was stored and not acked is handed over again. PopMQ stores a message id once.
"""
