"""Trace tables: what was run, what each stage produced, and how long each engine step took."""
