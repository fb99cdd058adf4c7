"""Members of groups that own whole queues: their shares and their queue locks."""
