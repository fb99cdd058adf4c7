"""The nightly work on dead letters on a cluster: DATABASE ENDPOINT FOLDER RATE."""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from popclient.spark import register
from tests.spark.redrive_driver import nightly

if __name__ == "__main__":
    spark = SparkSession.builder.appName("nightly").getOrCreate()
    register(spark)
    nightly(spark, sys.argv[1], sys.argv[2], Path(sys.argv[3]), float(sys.argv[4]))
