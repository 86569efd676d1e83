"""Every feature and the token table, as written out by hand."""

import numpy as np
import pytest

from chimera_train.predict.step_terms import (
    COUNTS,
    FEATURES,
    KINDS,
    TERMS,
    compile_model,
    extrapolates,
    step_ms,
    step_ms_of_each,
)

# Two chunks: 100 tokens after 200 computed ones and 20 after none; 4 sequences at 250 tokens.
MIXED = dict(zip(COUNTS, (120, 4, 1000, 25260), strict=True))
DECODE = {**MIXED, "prefill_tokens": 0, "prefill_attn": 0}
PREFILL = {**MIXED, "decode_tokens": 0, "decode_ctx_tokens": 0}
VALUES = {
    "const": (1, 1, 1),
    "tokens": (124, 4, 120),
    "prefill_tokens": (120, 0, 120),
    "decode_tokens": (4, 4, 0),
    "decode_ctx_tokens": (1000, 1000, 0),
    "prefill_attn": (25260, 0, 25260),
    "prefill_ctx": (210.5, 0, 210.5),
    "mixed": (1, 0, 0),
    "mixed_decode_tokens": (4, 0, 0),
    "mixed_decode_ctx_tokens": (1000, 0, 0),
    "mixed_mean_decode_ctx": (250, 0, 0),
    "batched": (1, 1, 1),
}


@pytest.mark.parametrize("term", TERMS)
def test_a_term_by_hand(term: str) -> None:
    compiled = compile_model({term: 2.0})
    times = [step_ms(compiled, *step.values()) for step in (MIXED, DECODE, PREFILL)]
    assert times == [2.0 * value for value in VALUES[term]]


def test_a_single_token_is_not_batched() -> None:
    compiled = compile_model({"batched": 2.0})
    assert [step_ms(compiled, *counts, 0, 0) for counts in ((0, 1), (1, 0))] == [0.0, 0.0]
    assert [step_ms(compiled, *counts, 0, 0) for counts in ((0, 2), (1, 1))] == [2.0, 2.0]


def test_terms_add_up() -> None:
    compiled = compile_model({"const": 3.0, "tokens": 0.5, "decode_tokens": 0.25})
    assert step_ms(compiled, *MIXED.values()) == 3.0 + 62.0 + 1.0
    counts = [np.array([MIXED[name], DECODE[name]], dtype=float) for name in COUNTS]
    np.testing.assert_array_equal(step_ms_of_each(compiled, *counts), [66.0, 6.0])


@pytest.mark.parametrize(
    ("tokens", "ms"), [(1, 5), (16, 5), (40, 6.5), (64, 8), (96, 8), (128, 8), (129, 8), (400, 8)]
)
def test_a_table_between_its_points_and_outside(tokens: int, ms: float) -> None:
    compiled = compile_model({}, ([16, 64, 128], [5, 8, 8]))
    assert step_ms(compiled, 0, tokens, 0, 0) == ms
    assert step_ms(compiled, tokens - 1, 1, 0, 0) == ms


def test_a_table_goes_on_as_it_ended() -> None:
    compiled = compile_model({}, ([16, 64], [5, 8]))
    assert step_ms(compiled, 112, 0, 0, 0) == 11


@pytest.mark.parametrize(
    ("axis", "seen", "outside"),
    [
        ("prefill_tokens", (100, 120), ((121, 200), (100, 119))),
        ("decode_tokens", (4, 9), ((5, 9), (1, 3))),
        ("prefill_ctx", (210, 211), ((211, 300), (100, 210))),
        ("mean_decode_ctx", (250, 250), ((251, 300), (100, 249))),
    ],
)
def test_outside_the_fitted_range_on_an_axis_is_extrapolation(axis, seen, outside) -> None:
    assert not extrapolates(compile_model({}, ranges={axis: seen}), *MIXED.values())
    for limits in outside:
        assert extrapolates(compile_model({}, ranges={axis: limits}), *MIXED.values())


def test_a_step_without_a_kind_of_tokens_has_no_context_of_it() -> None:
    compiled = compile_model({}, ranges={"prefill_tokens": (1, 2), "prefill_ctx": (1, 2)})
    assert not extrapolates(compiled, *DECODE.values())
    compiled = compile_model({}, ranges={"decode_tokens": (1, 2), "mean_decode_ctx": (1, 2)})
    assert not extrapolates(compiled, *PREFILL.values())
    assert not extrapolates(compile_model({"const": 1.0}), 1e9, 1e9, 1e18, 1e18)


def test_kinds_are_made_of_known_terms() -> None:
    for kind in KINDS.values():
        assert len(kind.terms) == len(set(kind.terms))
        for term in kind.terms:
            assert set(TERMS[term].features) <= set(FEATURES)
