"""Train, profile and prove routing and scheduling decisions for pools of LLM engines."""

__all__ = ["__version__"]

__version__ = "0.1.0"
