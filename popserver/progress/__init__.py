"""The progress of groups: lag, reset, skip, clone, import."""
