"""popmq.v1.Bulk: messages as columns, for Spark."""
