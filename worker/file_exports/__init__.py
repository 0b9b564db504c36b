"""A redacted export into files, once: what goes in, how it is parted, and the manifest that closes it."""
