"""The public port in front of gRPC, and the server's TLS certificate."""
