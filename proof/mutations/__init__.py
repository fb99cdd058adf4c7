"""Mutation testing: the code is changed in one place at a time, and the tests have to notice."""
