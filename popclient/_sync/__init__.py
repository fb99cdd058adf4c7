"""The synchronous clients. Made from popclient/aio by scripts/unasync.py, but for `callbacks` and `signals`."""
