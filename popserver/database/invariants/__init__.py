"""What must never be in a store, as data."""
