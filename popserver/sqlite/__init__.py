"""SQLite: its library, its file, and the settings of a connection."""
