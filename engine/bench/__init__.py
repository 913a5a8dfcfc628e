"""Benchmarks as commands: every figure is a ratio to a bare peer that ran beside it, in the same run."""
