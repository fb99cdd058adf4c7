"""The queue push consumer."""
