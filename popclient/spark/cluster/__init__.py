"""Spark on a cluster, whose executors run on other machines: how they get PopMQ, and what they say if they lack it."""

from __future__ import annotations
