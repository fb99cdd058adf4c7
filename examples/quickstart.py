"""Send a message, fail once, receive it again. Start a broker first: popmq serve --min-invisible 1s"""

import sys

from popclient import Producer, SimpleConsumer

endpoints = sys.argv[1] if len(sys.argv) > 1 else ""  # ROCKETMQ_ENDPOINTS, or 127.0.0.1:8081
with Producer(endpoints) as producer:
    print("sent", producer.send("orders", "one espresso", tag="coffee").message_id)

with SimpleConsumer(endpoints, "barista", "orders", invisible_duration=2) as consumer:
    for message in consumer:
        print(f"attempt {message.delivery_attempt}: {message.text}")
        if message.delivery_attempt == 1:
            continue  # the machine is cold: no ack, so it is delivered again when its hold ends after 2 s
        consumer.ack(message)
        break
