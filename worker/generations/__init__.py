"""The generations of a trace: the log that tells them, what one is bound to, and who watches it."""
