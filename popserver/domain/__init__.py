"""The law: pure functions and plain values. Nothing here knows a database, a clock or a wire."""
