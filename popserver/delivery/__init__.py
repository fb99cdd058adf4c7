"""What all rooms share that change a delivery: message groups, history, dead letters, retries."""
