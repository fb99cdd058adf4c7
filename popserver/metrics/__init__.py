"""What a server tells a monitoring system: Prometheus metrics under the names of RocketMQ 5, and our own."""
