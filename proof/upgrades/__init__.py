"""Stores, servers and clients of earlier versions, beside those of this checkout (fault F20)."""
