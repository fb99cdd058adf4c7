"""Connections to Postgres: its hosts, which of them is the primary, and poolers in front of it."""
