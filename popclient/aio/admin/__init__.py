"""The administration client for asyncio; its facts are those of `popclient.admin`."""
