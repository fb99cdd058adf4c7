"""The door: gRPC in, the broker's verbs out. The only place that knows the wire's types."""
