"""Fitting and judging step-time models: how long an engine takes for a token batch."""
