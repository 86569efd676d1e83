"""The router that reads: an encoder fine-tuned, exported and run as ONNX (Chimera §3.3)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chimera_train.output import Output
from chimera_train.predict.router import Router
from chimera_train.predict.router_scorers import NETWORKS, Floats, NetworkScorer, NetworkSettings
from chimera_train.pretrained import quiet_transformers
from chimera_train.router.export import export_router
from chimera_train.router.gain import prices, routed
from chimera_train.router.labels import RouterData, Split
from chimera_train.router.metrics import macro_map
from chimera_train.router.settings import RouterSettings
from chimera_train.router.train import Trained, train
from chimera_train.router.watch import Curves

__all__ = ["FittedNetwork", "fit_network"]

_LEAST_AGREEMENT = 0.99


@dataclass(frozen=True, slots=True)
class FittedNetwork:
    """A fine-tuned encoder.

    Attributes:
        scorer: the exported network, in the precision of the settings.
        trained: the same in torch.
    """

    scorer: NetworkScorer
    trained: Trained

    def save_checkpoint(self, directory: Path) -> None:
        """Write weights and tokenizer as transformers reads them, for further training."""
        self.trained.model.save_pretrained(directory)
        self.trained.tokenizer.save_pretrained(directory)

    def figures(self, router: Router, holdout: RouterData, output: Output) -> dict[str, Any]:
        """How it was trained, and what 8 bits change on the holdout questions.

        ``router`` is that of ``scorer``, which has been asked about them already.

        ``int8.agreement`` is the share of questions that are sent to the same model, as a mean over
        all prices of a unit of cost that make a difference. Where 8 bits are what will run and it
        is below 99 %, a warning says so.
        """
        scorer = self.scorer
        q = {scorer.settings.precision: router.predict(holdout.texts)}
        for precision in NETWORKS:
            if precision not in q:
                other = scorer.settings.model_copy(update={"precision": precision})
                logits = NetworkScorer(scorer.directory, other).logits(holdout.texts)
                q[precision] = router.calibration.apply(logits)
        agreement = _agreement(q["fp32"], q["int8"], holdout.cost[1])
        if scorer.settings.precision == "int8" and agreement < _LEAST_AGREEMENT:
            output.warn(
                f"with 8 bits {1 - agreement:.1%} of the questions go to another model than in full"
                " precision: set fit_router.precision to fp32 unless the time saved is worth it."
            )
        return {
            "int8": {
                "agreement": agreement,
                "map_macro": macro_map(holdout.success, q["int8"]),
                "largest_difference": float(np.abs(q["int8"] - q["fp32"]).max()),
            },
            "objective": {
                "chosen": self.trained.objective,
                "validation": self.trained.validation,
            },
            "epochs": {"trained": self.trained.epochs, "best": self.trained.best_epoch},
        }


def fit_network(
    parts: Split,
    settings: RouterSettings,
    work: Path,
    output: Output,
    curves: Curves | None = None,
) -> FittedNetwork:
    """Fine-tune on the training questions, stopping by the validation ones, and export.

    ``work`` keeps checkpoints, from which a training that was killed goes on, and the export. Of
    several processes only the main one returns. ``curves`` gets figures while the training runs.

    Raises:
        ConfigError: the encoder cannot be used.
        ChimeraError: the trained network cannot be exported.
    """
    with quiet_transformers():
        trained = train(parts.training, parts.validation, settings, work, output, curves)
        output.info("Exporting the network.")
        exported = work / "export"
        exported.mkdir(exist_ok=True)
        export_router(trained.model, trained.tokenizer, exported, max_length=settings.max_length)
    network = NetworkSettings(
        encoder=settings.encoder,
        max_length=settings.max_length,
        tail_share=settings.tail_share,
        precision=settings.precision,
    )
    return FittedNetwork(NetworkScorer(exported, network), trained)


def _agreement(first: Floats, second: Floats, cost: Floats) -> float:
    if np.isnan(cost).any():
        return float((first.argmax(axis=1) == second.argmax(axis=1)).mean())
    at = prices(first, cost)
    return float((routed(first, cost, at) == routed(second, cost, at)).mean())
