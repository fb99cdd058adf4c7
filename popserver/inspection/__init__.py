"""What an operator asks: status, why, peek, filter trial, topics and groups."""
