"""Fitting and judging the forests that predict how many tokens a program still generates."""
