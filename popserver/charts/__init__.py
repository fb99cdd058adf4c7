"""Charts of groups and topics over time, which the server keeps itself."""
