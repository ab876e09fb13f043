"""Benchmarks: Corral beside its peers (`make bench`), under load, and after a crash."""
