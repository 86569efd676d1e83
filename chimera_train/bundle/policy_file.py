"""A policy file as people write it (YAML) or as a bundle holds it (JSON)."""

from pathlib import Path
from typing import Any

from pydantic import RootModel, model_validator

from chimera_train.config import load_yaml
from chimera_train.scheduling.policy import POLICY_SCHEMA, PolicySettings, load_policy

__all__ = ["read_policy"]


class _PolicyFile(RootModel[PolicySettings]):
    @model_validator(mode="before")
    @classmethod
    def _of_this_schema(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        schema = values.get("schema", POLICY_SCHEMA)
        if schema != POLICY_SCHEMA:
            raise ValueError(f"policy schema {schema}, but this version reads {POLICY_SCHEMA}")
        return {key: value for key, value in values.items() if key != "schema"}


def read_policy(path: Path) -> PolicySettings:
    """Read a policy from ``.yaml``, ``.yml`` or ``.json``.

    Raises:
        ConfigError: a setting is wrong; file, key and in YAML the line are named.
        DataError: a JSON file is missing or is not a policy of this schema.
    """
    if path.suffix in {".yaml", ".yml"}:
        return load_yaml(path, _PolicyFile).root
    return load_policy(path)
