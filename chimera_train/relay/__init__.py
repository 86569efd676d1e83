"""The HTTP relay: streams a request to an engine, relays its bytes, and observes what passes."""
