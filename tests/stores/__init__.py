"""Servers of real stores for tests, each started once a session on loopback and stopped by its own process id."""
