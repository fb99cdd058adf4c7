"""Stored messages: appending, reading, duplicates, idempotency keys, ranges."""
