"""What the core costs, measured beside the least that any such program must do; run by hand with `make bench`."""
