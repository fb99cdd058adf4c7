"""`popmq serve`: reads the settings, and runs the server until it is told to stop."""
