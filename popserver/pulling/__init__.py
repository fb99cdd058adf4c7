"""PullMessage, offsets, and messages that consumers send back."""
