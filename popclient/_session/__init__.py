"""A client's connection to its server: transport, TLS, session, routes, batches, and conversion to the wire."""
