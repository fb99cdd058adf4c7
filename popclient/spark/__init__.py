"""PopMQ in Spark: `session()` starts one, and `spark.read.format("popmq")` reads dead letters (docs/spark.md).

On a cluster `register(spark)` makes the format known to the cluster's own session (docs/spark-cluster.md).
Needs `pip install 'popmq[spark]'` and a Java runtime of version 17 or newer.
"""

from __future__ import annotations

from popclient.spark.cluster.fitness import ClusterUnfit
from popclient.spark.cluster.registering import register
from popclient.spark.session import JavaMissing, session

__all__ = ["ClusterUnfit", "JavaMissing", "register", "session"]
