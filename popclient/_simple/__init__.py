"""The simple consumer: `core` is its life, `polls` its long polls, which outlive the calls that wait for them."""
