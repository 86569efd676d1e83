"""Which engine serves a program and in what order: the core that simulator and gateway share."""
