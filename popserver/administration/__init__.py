"""The questions and commands of operators: status, why, peek, filter trial, topics and groups."""
