"""popmq.v1.Bulk: many messages at once as columns, for Spark."""
