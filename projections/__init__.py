"""The core: pure functions from source messages to trace records, without clock, randomness, IO or threads."""
