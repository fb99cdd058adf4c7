"""What a database writes and syncs is recorded; images that a power cut may leave are opened and judged."""
