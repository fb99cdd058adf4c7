"""The progress of a group in its queues: kept by the server (`remote`), in a file (`local`), or by a store of the user.

`start` decides where a queue begins if it has no progress, or its topic was recreated.
"""
