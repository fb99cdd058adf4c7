"""The wire of PopMQ in Python: `popproto.v2` is RocketMQ 5's protocol, `popproto.v1` our own administration."""
