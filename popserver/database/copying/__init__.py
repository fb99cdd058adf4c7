"""Copies a database into an empty one of either kind, while no server uses them: `popmq db copy`."""
