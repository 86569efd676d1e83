"""What is recorded of a step, against the definition, and the file it goes into."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from chimera_train.collect.step_log import COLUMNS, StepLog, batch_shape, read_step_log
from chimera_train.traces.schemas import SCHEMAS


def test_a_mixed_batch_by_hand() -> None:
    # A decode at context 30, one at 7, a chunk of 4 after 6 of a prompt of 20, a whole prompt of 3.
    shape = batch_shape([(1, 30, 10), (1, 7, 7), (4, 6, 20), (3, 0, 3)])
    assert shape._asdict() == {
        "prefill_tokens": 7,
        "decode_tokens": 2,
        "n_prefill": 2,
        "n_seqs": 4,
        "prefill_attn": (4 * 6 + 4 * 5 // 2) + 3 * 4 // 2,
        "decode_ctx_tokens": 37,
        "max_prefill_ctx": 10,
        "max_decode_ctx": 30,
    }


def test_the_last_token_of_a_prompt_is_prefill_and_recomputed_output_too() -> None:
    assert batch_shape([(1, 9, 10)]).n_prefill == 1
    assert batch_shape([(5, 12, 10)])[:3] == (5, 0, 1)


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 300), st.integers(1, 300)), max_size=20)
)
def test_attention_is_one_pair_for_every_token_and_what_it_sees(
    sequences: list[tuple[int, int, int]],
) -> None:
    shape = batch_shape(sequences)
    chunks = [(n, c) for n, c, prompt in sequences if n > 1 or c < prompt]
    assert shape.prefill_attn == sum(c + i for n, c in chunks for i in range(1, n + 1))
    assert shape.prefill_tokens + shape.decode_tokens == sum(n for n, _, _ in sequences)
    assert shape.n_seqs == len(sequences)
    assert shape.max_prefill_ctx == max((n + c for n, c in chunks), default=0)


def test_steps_are_read_back_and_a_line_cut_short_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    log = StepLog(path, {"device": "cpu"})
    for index in range(300):
        log.add(
            batch_shape([(1, index + 1, 1)]),
            kv_blocks_used=index,
            schedule_ms=0.5,
            step_ms=1.5,
            end_s=float(index),
        )
    on_the_way = len(read_step_log(path)[1])
    assert 0 < on_the_way < 300
    log.close()
    engine, steps = read_step_log(path)
    assert engine == {"device": "cpu"}
    assert [step["step"] for step in steps] == list(range(300))
    assert steps[7]["decode_ctx_tokens"] == 8
    assert steps[7]["kv_blocks_used"] == 7
    path.write_bytes(path.read_bytes()[:-3])
    assert len(read_step_log(path)[1]) == 299


def test_the_columns_are_those_of_the_trace_table() -> None:
    of_imports = {"n_steps", "n_prefill_steps", "n_decode_steps", "n_batched_steps", "origin"}
    assert {*COLUMNS} - {"end_s"} == {*SCHEMAS["steps"].names} - {"engine"} - of_imports
