"""`popmq top`."""
