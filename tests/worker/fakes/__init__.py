"""Fakes of the worker's ports, each held to the real one's contract by a test that runs on both."""
