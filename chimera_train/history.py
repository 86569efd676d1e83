"""What a program has done before a stage: the part of a prediction that only time brings."""

from dataclasses import dataclass, replace

__all__ = ["HISTORY_COLUMNS", "History"]

HISTORY_COLUMNS = (
    "finished_stages",
    "generated_tokens",
    "first_tokens",
    "last_tokens",
    "previous_tokens",
    "longest_tokens",
    "mean_tokens",
)


@dataclass(frozen=True, slots=True)
class History:
    """The finished stages of a program, in the order in which they were called.

    A stage that was rejected is called again, under its own id or under one that the workflow gives
    to the second attempt; so how often a stage ran already tells how often it was rejected.

    Attributes:
        stages: ids of the finished stages.
        generated_tokens: output tokens of all of them.
        first_tokens, last_tokens, previous_tokens: of the first, the last and the one before that.
        longest_tokens: of the longest.
        last_prompt_tokens: prompt tokens of the last.
    """

    stages: tuple[str, ...] = ()
    generated_tokens: int = 0
    first_tokens: int = 0
    last_tokens: int = 0
    previous_tokens: int = 0
    longest_tokens: int = 0
    last_prompt_tokens: int = 0

    def after(self, stage: str, prompt_tokens: int, output_tokens: int) -> "History":
        """The history once ``stage`` has finished too."""
        return replace(
            self,
            stages=(*self.stages, stage),
            generated_tokens=self.generated_tokens + output_tokens,
            first_tokens=self.first_tokens if self.stages else output_tokens,
            last_tokens=output_tokens,
            previous_tokens=self.last_tokens,
            longest_tokens=max(self.longest_tokens, output_tokens),
            last_prompt_tokens=prompt_tokens,
        )

    def columns(self) -> tuple[float, ...]:
        """The values of ``HISTORY_COLUMNS``."""
        return (
            len(self.stages),
            self.generated_tokens,
            self.first_tokens,
            self.last_tokens,
            self.previous_tokens,
            self.longest_tokens,
            self.generated_tokens / max(1, len(self.stages)),
        )

    def earlier_runs(self, stage: str) -> int:
        """How often ``stage`` has finished already."""
        return self.stages.count(stage)

    def prompt_growth(self, prompt_tokens: int) -> int:
        """Tokens of a prompt that are new and not the program's own: what a tool has answered."""
        if not self.last_prompt_tokens:  # no stage has finished, or its engine did not count
            return 0
        return prompt_tokens - self.last_prompt_tokens - self.last_tokens
