"""A run for people: its timeline and its usage, as text."""
