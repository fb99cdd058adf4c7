"""Mode `journal`: a push consumer writes what it receives to files, acks it, and the stream reads the files.

Speaks the standard RPCs alone, so it works with any RocketMQ 5 proxy. A message is lost at no moment: it is acked when
the segment that holds it, and the folder's entry for it, are durable; a segment is removed when Spark will never ask
for it again. What the server hands out a second time, because it did not hear the ack, is dropped by its id.
"""
