"""Rows into a topic: `df.write.format("popmq")` and `df.writeStream.format("popmq")`."""

from __future__ import annotations
