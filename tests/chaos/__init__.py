"""Real brokers and real workers that are killed, frozen and restarted while messages come in (`make chaos`)."""
