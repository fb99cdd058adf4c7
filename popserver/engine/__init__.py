"""The machine: transactions, one writer, readers, the clock, timers. It knows no feature."""
