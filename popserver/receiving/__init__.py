"""ReceiveMessage: scan, open message groups, repeated receives, long polls."""
