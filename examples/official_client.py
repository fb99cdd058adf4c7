"""RocketMQ's own Python client, exactly as it comes from PyPI, against PopMQ.

pip install rocketmq-python-client==5.1.2
"""

import sys

from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer

endpoints = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8081"
configuration = ClientConfiguration(endpoints, Credentials())

producer = Producer(configuration, ("orders",))
producer.startup()
message = Message()
message.topic = "orders"
message.body = b"one espresso"
message.tag = "coffee"
print("sent", producer.send(message).message_id)
producer.shutdown()

consumer = SimpleConsumer(configuration, "official", {"orders": FilterExpression("coffee")})
consumer.startup()
received = consumer.receive(max_message_num=32, invisible_duration=15)
for each in received:
    print("received", each.message_id, each.body.decode())
    consumer.ack(each)
consumer.shutdown()
