"""Transactions, the writer, readers, the clock and timers. This room knows no feature."""
