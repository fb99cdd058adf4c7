"""The record of mirrors: processes that hand messages over between servers."""
