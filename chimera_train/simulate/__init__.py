"""Simulating a pool of vLLM engines under the very scheduler that serves."""
