"""Fuzzing of a whole server: the handlers of all calls, and the HTTP port. It runs in the process, on a SQLite file."""
