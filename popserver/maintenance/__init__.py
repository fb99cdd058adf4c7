"""What the server does by itself: retention, the purge of deleted topics, watching the clock."""
