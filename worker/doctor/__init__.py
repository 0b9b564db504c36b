"""What may be wrong with a worker and where it runs, each fault with its remedy."""
