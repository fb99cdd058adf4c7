"""`popmq move …`: move topics and groups to another server, while they are used."""
