"""Mode `lease`: receives messages under attempt ids, and acks them when Spark has committed their batch.

A batch is one or several receives of popmq.v1.Bulk. The attempt id of each is made of the option leaseOwner, the
batch's number and the receive's number. While the messages are held, a repeated receive under the same attempt id
returns the same messages, so a replayed batch is the same batch. A thread renews the holds while the batch runs. They
are acked in `latestOffset(start)`: when Spark calls it, it has committed the batch that ends in `start`.
"""
