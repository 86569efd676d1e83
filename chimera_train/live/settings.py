"""When live figures count as no longer true."""

from pydantic import Field

from chimera_train.config import Settings

__all__ = ["EvaluateLiveSettings"]


class EvaluateLiveSettings(Settings):
    """Section ``evaluate_live`` of the parameter file.

    Beyond a limit the log is ``drifting``; what makes it ``broken`` is said.

    Attributes:
        min_programs: completed programs below which lengths are not judged, and nothing is known.
        min_rows: of a group of rows on either side of a comparison, or of known outcomes of a
            model; smaller groups are reported and not judged.
        distance_above: how far the whole interval of the Kendall-τ distance may lie above that of
            ``fit length``. An interval that reaches 0.5 is broken: arrival is as good an order.
        coverage_below: how far the share of lengths within the predicted 80 % interval may lie
            below 0.8.
        bias_percent: predicted tokens, summed, above or below the realised ones.
        ttft_mape_percent: of predicted times to first token.
        ece: expected calibration error of the router.
        psi: population stability index of a distribution against the training data's.
        p_value: of the test of the same; only a difference that chance does not explain counts.
            It is divided by the number of comparisons (Bonferroni).
        outside: share of requests outside what was trained on.
        error_share: of requests that the gateway or an engine failed; beyond it is broken.
        seed: of the bootstrap intervals.
    """

    min_programs: int = Field(default=100, gt=1)
    min_rows: int = Field(default=100, gt=1)
    distance_above: float = Field(default=0.05, ge=0, le=1)
    coverage_below: float = Field(default=0.1, ge=0, le=1)
    bias_percent: float = Field(default=30.0, gt=0)
    ttft_mape_percent: float = Field(default=50.0, gt=0)
    ece: float = Field(default=0.15, gt=0, le=1)
    psi: float = Field(default=0.25, gt=0)
    p_value: float = Field(default=0.001, gt=0, lt=1)
    outside: float = Field(default=0.1, ge=0, le=1)
    error_share: float = Field(default=0.05, ge=0, le=1)
    seed: int = 1
