"""Servers, databases and clients that are killed, stopped and cut off under load; what clients saw is judged."""
