"""SendMessage, delayed messages, transactions, recall."""
