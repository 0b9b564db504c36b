"""The commands of the program, one module each; each registers itself with ``worker.cli`` when it is asked for."""
