"""The producer's core, and transactions."""
