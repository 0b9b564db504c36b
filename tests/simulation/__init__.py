"""Deterministic simulation: the real roles on a virtual broker, clock and sinks; one seed is one world."""
