"""Motion: time, waiting, and the one writer. Asyncio; the door stands above it, the store below."""
