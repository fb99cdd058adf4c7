"""The server's HTTP port: metrics, liveness and readiness, and what other packages mount there."""
