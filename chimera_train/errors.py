"""One exception tree, grouped by what the user should do about it.

    ChimeraError            exit 1    something failed while running
    ├── ConfigError         exit 2    a flag, pool, workflow or parameter file is wrong: edit it
    ├── DataError           exit 3    traces, steps or a bundle are unusable: see the file named
    ├── EngineError         exit 4    an engine could not be started or reached: look at its log
    └── QualityGateError    exit 5    a figure missed the threshold that was asked for

Every message is one sentence that says what is wrong, where, and what to do. Low-level errors are
wrapped with ``raise ... from error`` so that ``--debug`` still shows the cause.
"""

__all__ = ["ChimeraError", "ConfigError", "DataError", "EngineError", "QualityGateError"]


class ChimeraError(Exception):
    """A run failed for a reason that no more specific class covers."""

    exit_code = 1


class ConfigError(ChimeraError):
    """A flag, pool, workflow, policy or parameter file is wrong or contradictory."""

    exit_code = 2


class DataError(ChimeraError):
    """A data file or bundle is missing, malformed, altered or too small to be used."""

    exit_code = 3


class EngineError(ChimeraError):
    """An engine could not be started, could not be reached, or died."""

    exit_code = 4


class QualityGateError(ChimeraError):
    """A measured figure missed the threshold that the user set."""

    exit_code = 5
