# Made by scripts/unasync.py from popclient/aio/admin/__init__.py. Do not edit.
"""The administration client for asyncio; its facts are those of `popclient.admin`."""
