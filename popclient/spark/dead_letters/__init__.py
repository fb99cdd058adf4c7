"""Dead letters, straight from a PopMQ database: in a batch, or as a stream; and the record of what was sent back.

The option `view` names what is read: `dead_letters`, or `lineage`.
"""
