"""Pictures as numbers: where each part is and how wide. Templates draw them, so that every text is escaped."""
