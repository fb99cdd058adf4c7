"""HTTP/2 and gRPC's framing, spoken in the event loop. `door` is the interface to the rest of the server."""
