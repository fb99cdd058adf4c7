"""What needs a person: found for operators, and told to a webhook."""
