"""The end of a hold: ack, change of the invisible duration, forward, release, expiry."""
