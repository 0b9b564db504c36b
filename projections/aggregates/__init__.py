"""The aggregates: each the only writer of its records; what one must tell another travels as a derived fact."""
