"""Makes all parts of a broker, and starts and stops them in order."""
