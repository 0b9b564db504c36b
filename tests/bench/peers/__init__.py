"""The worker beside Faust, Quix Streams and FastStream: `contest` measures, each framework has a module."""
