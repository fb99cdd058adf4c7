"""Topics, groups, and which group consumes which topic."""
