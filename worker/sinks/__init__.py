"""The destinations, one module each; ``worker.sink.SINKS`` names them."""
