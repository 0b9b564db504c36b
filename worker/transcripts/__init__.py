"""Transcript files and their lines, as harnesses write them."""
