"""Values and rules for all rooms: names, topics, groups, messages, states, times, errors. Imports no other room."""
