"""Several servers on one Postgres: which are there, and what they tell each other."""
