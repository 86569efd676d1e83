"""The bundle: everything that the gateway loads, in one versioned and verified directory."""
