"""Plots of what was collected and measured."""
