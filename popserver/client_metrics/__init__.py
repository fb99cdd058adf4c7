"""The metrics that clients send of themselves (`--client-metrics`), and what of them is exported."""
