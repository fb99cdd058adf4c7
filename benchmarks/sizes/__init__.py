"""What a message, a group, an idle poll cost, and what a very large store does: the figures of `popmq size`."""
