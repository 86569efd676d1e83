"""The recording proxy: real traffic of agent applications on a pool becomes traces."""
