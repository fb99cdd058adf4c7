"""A listener, message groups, a failure. Start a broker first: popmq serve

The orders of a table are served in order, and the tables in parallel. One cup falls: its table waits 3 s, and the other
table continues.
"""

import sys
import threading

from popclient import ConsumeResult, Message, MessageView, NotFound, Producer, PushConsumer
from popclient.admin import Admin

endpoints = sys.argv[1] if len(sys.argv) > 1 else ""  # ROCKETMQ_ENDPOINTS, or 127.0.0.1:8081
served = threading.Semaphore(0)


def serve(message: MessageView) -> ConsumeResult:
    if message.text == "tea" and message.delivery_attempt == 1:
        print(f"{message.message_group}: a cup of {message.text} falls")
        return ConsumeResult.FAILURE  # raising an exception is the same
    print(f"{message.message_group}: {message.text}, attempt {message.delivery_attempt}")
    served.release()
    return ConsumeResult.SUCCESS


with Admin(endpoints) as admin:
    try:
        admin.get_topic("tables")
    except NotFound:
        admin.create_topic("tables", accept_message_types=["FIFO"])

with Producer(endpoints) as producer, PushConsumer(endpoints, "waiters", "tables", serve):
    for order in ("espresso", "tea", "cake"):
        for table in ("table 1", "table 2") if order != "tea" else ("table 1",):
            producer.send(Message("tables", order, message_group=table))
    for _ in range(5):
        served.acquire()
