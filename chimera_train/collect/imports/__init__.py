"""Programs out of what others logged; one module per kind of source."""
