"""Shared by all rooms that change deliveries: message groups, history, dead letters, retries."""
