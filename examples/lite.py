"""Lite topics: a name for each conversation, and each agent gets its own. Start a broker first: popmq serve

The orchestrator gives each agent a task, and gets the answers by a lite topic of its own. No topic, queue or group is
made for a conversation: a message creates the lite topic that it names, and it ends a day after its last message.
"""

import sys

from popclient import ConsumeResult, LitePushConsumer, LiteSimpleConsumer, Message, MessageView, NotFound, Producer
from popclient.admin import Admin

endpoints = sys.argv[1] if len(sys.argv) > 1 else ""  # ROCKETMQ_ENDPOINTS, or 127.0.0.1:8081
TASKS = {"weather": "rain in Oslo", "travel": "a train to Bergen"}

with Admin(endpoints) as admin:
    try:
        admin.get_topic("sessions")
    except NotFound:
        admin.create_topic("sessions", accept_message_types=["LITE"], lite_expiry=86_400)

with Producer(endpoints) as producer:

    def work(task: MessageView) -> ConsumeResult:
        producer.send(Message("sessions", f"{task.lite_topic} did: {task.text}", lite_topic="orchestrator-7"))
        return ConsumeResult.SUCCESS

    with (
        LiteSimpleConsumer(endpoints, "orchestrators", "sessions", "orchestrator-7") as answers,
        LitePushConsumer(endpoints, "agents", "sessions", work, list(TASKS)),
    ):
        for agent, task in TASKS.items():
            producer.send(Message("sessions", task, lite_topic=agent))
        done: list[str] = []
        while len(done) < len(TASKS):
            received = answers.receive()
            answers.ack(received)
            done += [each.text for each in received]

print(*sorted(done), sep="\n")
