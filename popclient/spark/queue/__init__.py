"""Mode `queue`: topics by offsets, in a batch or as a stream. Spark's checkpoint is where a stream stands."""
