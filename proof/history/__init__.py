"""Histories of calls, and the laws that judge them; `tests/support/checker.py` has those of a plain topic."""
