"""The gateway: an OpenAI-compatible server that lets the scheduling core choose the engine."""
