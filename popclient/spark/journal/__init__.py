"""Mode `journal`: a push consumer writes messages to files and acks them; the stream reads the files.

It uses only RocketMQ's own RPCs, so it works with any RocketMQ 5 proxy. No message is lost: it is acked when its
segment and the folder's entry for it are durable, and a segment is removed when Spark will not read it again. Messages
that the server delivers again, because an ack was lost, are dropped by their ids.
"""
