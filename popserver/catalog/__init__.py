"""Topics, groups, and which group has subscribed to which topic."""
