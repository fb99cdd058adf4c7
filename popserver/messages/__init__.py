"""Stored messages: append, read, duplicates, idempotency keys, ranges, seeks."""
