"""From a gRPC call to a method and back: calls, status codes, limits, listening, converters."""
