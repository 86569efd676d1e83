"""The command line: one module per command, no logic. Heavy imports stay inside the commands."""
