"""A stand-in for vLLM: what `python -m vllm.entrypoints.openai.api_server` runs in unit tests."""
