"""Shipping transcript files into their topic: what was read, what was sent, how far each file got."""
