"""`popmq size`: what a load needs, computed from the figures of a benchmark."""
