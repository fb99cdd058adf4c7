"""Package apache.rocketmq.v2: messages, codes and services of the RocketMQ 5 protocol."""
