"""Dead letters, straight from the view `dead_letters` of a PopMQ database: in a batch, or as a stream."""
