"""Numbers for monitoring systems: Prometheus metrics under the names of RocketMQ 5, and our own."""
