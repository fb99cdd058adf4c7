"""Connections to Postgres: its hosts, the primary among them, and poolers in front of it."""
