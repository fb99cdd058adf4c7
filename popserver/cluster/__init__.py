"""Several servers on one Postgres: which are running, and their notifications to each other."""
