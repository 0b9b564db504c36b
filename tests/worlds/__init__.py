"""Generated worlds: what factories of agents leave behind, seeded, and the ways it can reach the projector."""
