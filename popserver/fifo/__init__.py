"""The order of message groups: the runs of their deliveries, and the positions where groups continue."""
