"""What the server does by itself: retention, purging deleted topics, watching the clock."""
