"""Lite topics: which client gets which, and how long they live (docs/design/0021)."""
