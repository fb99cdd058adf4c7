"""Fuzzing: random and damaged inputs for each parser that reads what clients, users and other servers send."""
