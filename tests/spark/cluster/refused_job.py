"""A driver that tries executors with one Python after the other: PATIENCE PYTHON [PYTHON …].

Prints what `register` says. "3.99:PYTHON" makes believe that the driver's Python is of that version.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from popclient.spark import ClusterUnfit, register

if __name__ == "__main__":
    spark = SparkSession.builder.appName("refused").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    own_version = spark.sparkContext.pythonVer
    for given in sys.argv[2:]:
        version, _, python = given.rpartition(":")
        spark.sparkContext.pythonVer = version or own_version
        spark.sparkContext.pythonExec = python
        try:
            register(spark, patience=float(sys.argv[1]))
        except ClusterUnfit as refusal:
            print(given, "->", refusal, flush=True)
        else:
            print(given, "->", "fit", flush=True)
