"""From a gRPC call to a method and back: calls, statuses, limits, listening, converters."""
