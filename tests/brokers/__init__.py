"""Kafka brokers for tests: found, started and stopped."""
