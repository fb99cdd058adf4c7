"""A server under steady load: memory, files, threads, tasks, log and tables stay level."""
