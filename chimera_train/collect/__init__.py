"""Running workflows on the engines of a pool, and profiling the steps of one engine."""
