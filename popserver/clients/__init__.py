"""Connected clients: telemetry, heartbeat, settings, routes, commands."""
