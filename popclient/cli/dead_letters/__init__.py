"""`popmq dlq …`: dead letters are listed, classified, exported, purged and redriven."""
