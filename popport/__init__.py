"""What the ports of server and console have in common: addresses of callers, and limits for what they take."""
