"""PopMQ in Spark: `session()` starts one, and `spark.read.format("popmq")` reads dead letters (docs/spark.md).

Needs `pip install 'popmq[spark]'` and a Java runtime of version 17 or newer.
"""

from __future__ import annotations

from popclient.spark.java import JavaMissing
from popclient.spark.session import session

__all__ = ["JavaMissing", "session"]
