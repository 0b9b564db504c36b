"""Trace records as OpenTelemetry spans."""
