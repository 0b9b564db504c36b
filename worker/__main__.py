"""`python -m worker`: the same command as `trace-projector`."""

from worker.cli import main

main()
