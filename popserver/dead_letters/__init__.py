"""What operators do with dead letters: list, purge, redrive."""
