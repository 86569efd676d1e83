"""From traces to a router that can be deployed: split, fit, calibrate, choose, judge, write.

What is judged is what will run, the exported ONNX file if it is a network, behind its calibration;
the holdout questions are seen by nothing before.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chimera_train.errors import DataError
from chimera_train.files import replaced_directory, write_text
from chimera_train.output import Output
from chimera_train.predict.calibration import sigmoid
from chimera_train.predict.router import Kind, Router
from chimera_train.router.card import router_card
from chimera_train.router.choose import choose
from chimera_train.router.judge import judge
from chimera_train.router.kinds import calibrated, fit_kinds, term_space
from chimera_train.router.labels import RouterData, Split, router_data, split
from chimera_train.router.learning import learning_curve
from chimera_train.router.settings import RouterSettings
from chimera_train.router.store import CARD, CHECKPOINT, require_replaceable, write_router
from chimera_train.traces.store import load_traces

if TYPE_CHECKING:
    from chimera_train.router.watch import Curves

__all__ = ["fit_and_write", "fit_router"]

_LEAST_QUESTIONS = 20


def fit_router(
    traces_dir: Path,
    out_dir: Path,
    settings: RouterSettings,
    output: Output,
    curves: "Curves | None" = None,
    *,
    learning: bool = False,
) -> dict[str, Any]:
    """Fit a router on collected traces and write it to ``out_dir``; return its metrics.

    All kinds but the encoder are fitted in any case, since they take seconds: those that are not
    kept are the baselines of the one that is.

    ``out_dir`` gets ``router.json`` (models, calibration, digests), the files of its kind, those of
    the training questions, ``metrics.json`` and a model card; an encoder also ``checkpoint/``
    (safetensors, for further training). It appears whole or not at all, and replaces an earlier
    router. A training of an encoder that was killed is resumed by the same call; ``curves`` gets
    figures while it runs.

    The metrics are those of ``judge`` on the holdout questions with the other kinds as baselines,
    those of ``labels.Split.figures``, ``kind``, and, of an encoder, what 8 bits change (``int8``);
    ``candidates`` are all kinds' figures on the validation questions; and with ``learning`` there
    is ``learning_curve``.

    Raises:
        ConfigError: the encoder cannot be used, or ``out_dir`` holds something else.
        DataError: the traces cannot be used, or hold too few graded questions.
        ChimeraError: the trained network cannot be exported.
    """
    require_replaceable(out_dir)
    traces = load_traces(traces_dir)
    data = router_data(traces, settings.reads)
    ungraded = int(traces.programs["score"].isna().sum())
    if ungraded:
        output.info(
            f"{ungraded} of {len(traces.programs)} programs were not graded and are left out"
        )
    return fit_and_write(data, out_dir, settings, output, curves, learning=learning)


def fit_and_write(
    data: RouterData,
    out_dir: Path,
    settings: RouterSettings,
    output: Output,
    curves: "Curves | None" = None,
    *,
    learning: bool = False,
) -> dict[str, Any]:
    """``fit_router`` on outcomes that are not in a directory of traces."""
    n_questions = len(set(data.question_ids))
    if n_questions < _LEAST_QUESTIONS:
        raise DataError(
            f"There are {n_questions} graded question(s), and a router needs at least"
            f" {_LEAST_QUESTIONS}, better some hundreds: collect more."
        )
    parts = split(data)
    space = term_space(parts.training, settings)
    routers: dict[Kind, Router] = {
        kind: calibrated(scorer, parts.validation)
        for kind, scorer in fit_kinds(parts.training, space, settings).items()
    }
    work = out_dir.parent / f".{out_dir.name}.work"
    network = None
    if settings.trains_encoder:
        from chimera_train.router.network import fit_network  # torch takes seconds

        network = fit_network(parts, settings, work, output, curves)
        routers["encoder"] = calibrated(network.scorer, parts.validation)
    choice = choose(routers, parts.validation, settings)
    output.info(choice.reason)
    chosen = routers[choice.kind]
    metrics = _judge(parts, routers, choice.kind, settings) | {
        **parts.figures(),
        "kind": choice.kind,
        "candidates": dict(choice.candidates),
    }
    if learning:
        metrics["learning_curve"] = learning_curve(parts, choice.kind, settings, output)
    with replaced_directory(out_dir) as staging:
        if network is not None and choice.kind == "encoder":
            metrics |= network.figures(chosen, parts.holdout, output)
            network.save_checkpoint(staging / CHECKPOINT)
        manifest = write_router(staging, choice.kind, chosen, parts, space, metrics, settings)
        write_text(staging / CARD, router_card(manifest))
    if network is not None:
        shutil.rmtree(work)
    return metrics


def _judge(
    parts: Split, routers: Mapping[Kind, Router], chosen: Kind, settings: RouterSettings
) -> dict[str, Any]:
    """The figures of ``chosen`` on the holdout questions, beside those of the other kinds."""
    holdout = parts.holdout
    return judge(
        parts.training,
        holdout,
        {kind: router.predict(holdout.texts) for kind, router in routers.items()},
        chosen,
        sigmoid(routers[chosen].logits(holdout.texts)),
        seed=settings.seed,
    )
