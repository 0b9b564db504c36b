"""Readers of what sinks hold, one module each; ``worker.record_reader.READERS`` names them."""
