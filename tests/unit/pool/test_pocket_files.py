"""The shipped pocket models: complete, small, safe to load, and sharing one lossless tokenizer."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from chimera_train.tasks.arithmetic import generate
from chimera_train.workflows.model import load_workflow, render

POCKET = Path(str(files("chimera_train.pool"))) / "pocket"
ARCHITECTURES = {
    "qwen": "Qwen3ForCausalLM",
    "ministral": "Ministral3ForCausalLM",
    "llama": "LlamaForCausalLM",
}
MODELS = sorted(ARCHITECTURES)
NEEDED = {
    "README.md",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}
WORKING = "start 47. add 15: 7 + 5 = 12, 4 + 1 + 1 = 6, so 62. times 2: 62 * 2 = 124. accept 9"


@cache
def tokenizer(model: str) -> Tokenizer:
    return Tokenizer.from_file(str(POCKET / model / "tokenizer.json"))


def config(model: str, name: str = "config.json") -> dict[str, object]:
    loaded = json.loads((POCKET / model / name).read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


def test_all_weights_fit_in_twelve_megabytes() -> None:
    assert sum(path.stat().st_size for path in POCKET.rglob("*") if path.is_file()) <= 12_000_000


@pytest.mark.parametrize("model", MODELS)
def test_a_model_is_complete_and_holds_nothing_that_runs_code(model: str) -> None:
    assert {path.name for path in (POCKET / model).iterdir()} == NEEDED
    assert config(model)["architectures"] == [ARCHITECTURES[model]]
    assert "auto_map" not in config(model)
    assert len((POCKET / model / "README.md").read_text(encoding="utf-8")) > 500


@pytest.mark.parametrize("model", MODELS)
def test_the_header_of_the_weights_matches_the_config(model: str) -> None:
    raw = (POCKET / model / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    tensors = json.loads(raw[8 : 8 + length])
    embedding = tensors["model.embed_tokens.weight"]
    assert embedding["dtype"] == "BF16"
    assert embedding["shape"] == [config(model)["vocab_size"], config(model)["hidden_size"]]


def test_the_models_share_one_tokenizer() -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert len({(POCKET / model / name).read_bytes() for model in MODELS}) == 1


def test_end_of_turn_ends_generation() -> None:
    end = tokenizer("qwen").token_to_id("<|end|>")
    for model in MODELS:
        assert config(model)["eos_token_id"] == end
        assert config(model, "generation_config.json")["eos_token_id"] == end
        assert config(model)["vocab_size"] == tokenizer(model).get_vocab_size()


@pytest.mark.parametrize("text", [WORKING, *(q.text for q in generate(50, 9))])
def test_texts_of_the_task_survive_unchanged_and_without_fallback(text: str) -> None:
    encoded = tokenizer("qwen").encode(text, add_special_tokens=False)
    assert tokenizer("qwen").decode(encoded.ids) == text
    assert "<unk>" not in encoded.tokens
    assert len(encoded.ids) <= 2 * len(text.split()) + text.count(".") + text.count(",") + 5


def test_numbers_are_encoded_digit_by_digit() -> None:
    assert tokenizer("qwen").encode("so 62.", add_special_tokens=False).tokens == [
        "\u2581so",
        "\u25816",
        "2",
        ".",
    ]


def test_text_decoded_token_by_token_encodes_to_the_same_tokens() -> None:
    ids = tokenizer("qwen").encode(WORKING, add_special_tokens=False).ids
    for count in range(1, len(ids) + 1):
        text = tokenizer("qwen").decode(ids[:count])
        assert tokenizer("qwen").encode(text, add_special_tokens=False).ids == ids[:count]
        # A streaming server may keep the space in front of the first word.
        assert tokenizer("qwen").encode(" " + text, add_special_tokens=False).ids == ids[:count]


@given(st.text())
@settings(max_examples=300)
def test_any_text_can_be_encoded_and_decoded(text: str) -> None:
    encoded = tokenizer("qwen").encode(text, add_special_tokens=False)
    assert all(0 <= token < tokenizer("qwen").get_vocab_size() for token in encoded.ids)
    tokenizer("qwen").decode(encoded.ids)


@given(st.text(alphabet=st.characters(min_codepoint=33, max_codepoint=126), min_size=1))
@settings(max_examples=300)
def test_printable_ascii_survives_unchanged(text: str) -> None:
    ids = tokenizer("qwen").encode(text, add_special_tokens=False).ids
    specials = {"<pad>", "<unk>", "<s>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"}
    if not any(special in text for special in specials):
        assert tokenizer("qwen").decode(ids) == text


def test_chat_template() -> None:
    transformers = pytest.importorskip("transformers")
    fast = transformers.AutoTokenizer.from_pretrained(POCKET / "qwen")
    messages = [
        {"role": "system", "content": "Solve the problem."},
        {"role": "user", "content": " How many? "},
        {"role": "assistant", "content": "answer 3"},
    ]
    assert fast.apply_chat_template(messages, tokenize=False) == (
        "<s><|system|>Solve the problem.<|end|><|user|>How many?<|end|><|assistant|>answer 3<|end|>"
    )
    prompt = fast.apply_chat_template(messages[:2], tokenize=False, add_generation_prompt=True)
    assert prompt.endswith("<|end|><|assistant|>")
    assert (fast.bos_token, fast.eos_token, fast.pad_token, fast.unk_token) == (
        "<s>",
        "<|end|>",
        "<pad>",
        "<unk>",
    )


def test_the_longest_prompts_leave_room_in_the_context() -> None:
    longest = " ".join(["add 15: 7 + 5 = 12, 4 + 1 + 1 = 6, so 62."] * 5)
    revise = load_workflow("math").stage("revise")
    for question in generate(50, 1):
        values = {"question": question.text, "solve": longest, "verify": longest}
        text = render(revise.system, values) + render(revise.user, values)
        used = len(tokenizer("llama").encode(text).ids) + revise.max_tokens
        assert used <= 1000


@pytest.mark.parametrize("model", MODELS)
def test_prompts_of_the_workflow_hold_no_unknown_token(model: str) -> None:
    for stage in load_workflow("math").stages:
        values = {"question": "How many?", "solve": WORKING, "verify": WORKING}
        for text in (stage.system, render(stage.user, values)):
            assert "<unk>" not in tokenizer(model).encode(text).tokens
