"""Mode `queue`: topics by offsets, as a batch or a stream. Spark's checkpoint keeps the progress of a stream."""
