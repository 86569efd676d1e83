"""Agent workflows as data: a workflow is a DAG of stages, a stage is one LLM call."""
