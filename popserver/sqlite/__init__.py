"""SQLite: its library, its file, and what a connection is set to."""
