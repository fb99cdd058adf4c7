"""Mode `lease`: messages received under names that can be asked for again, and acked when Spark has committed them.

A batch is up to so many receives of popmq.v1.Bulk, each under an attempt id that follows from the option leaseOwner and
the batch's number. As long as the messages are held, whoever repeats a receive under its attempt id gets the same ones
and nothing new; so a batch that is replayed is the same batch. A thread keeps them held while it runs. They are acked
in `latestOffset(start)`: when Spark asks it, the batch that ends in `start` stands in its commit log.
"""
