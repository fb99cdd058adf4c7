"""`popmq serve`: reads the settings, and runs the server until a signal stops it."""
