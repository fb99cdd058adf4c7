"""Package popmq.v1: the administration service."""
