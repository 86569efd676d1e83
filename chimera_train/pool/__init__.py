"""The engines that a program may be routed to: their description, start and supervision."""
