"""A Django project for the tests."""
