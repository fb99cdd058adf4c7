"""The nouns: names, topics, groups, messages, states, times, errors. It imports nothing but itself."""
