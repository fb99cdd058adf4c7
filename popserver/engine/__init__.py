"""Transactions, the writer, readers, the clock and timers. No module here depends on a feature."""
