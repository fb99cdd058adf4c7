"""apache.rocketmq.v2.Admin: RocketMQ's own administration, in the terms of this server."""
