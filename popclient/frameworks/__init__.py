"""popclient.frameworks: task queues and web frameworks over popclient, each in a module of its own."""
