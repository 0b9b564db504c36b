"""The shell: Kafka, time, retries, files and failure around the pure projections."""
