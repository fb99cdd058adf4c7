"""Small worlds: every order of events of two messages, in a model and in the real statements of both databases."""
