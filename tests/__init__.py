"""Tests: they mirror both packages; conformance/ has the vectors, integration/ needs a broker."""
