"""The roles: what project, fold and export do with a batch; they do not know each other."""
