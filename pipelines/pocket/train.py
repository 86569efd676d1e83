"""Train one pocket model from nothing: data, tokenizer, weights and model card from one seed.

    python pipelines/pocket/train.py --model qwen --out chimera_train/pool/pocket/qwen --seed 0

Nothing is downloaded. The length of the training is a number of steps, so that one machine with
one thread count always gives the same weights. Progress goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers import models as tokenizer_models
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Ministral3Config,
    Ministral3ForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

sys.path.insert(0, str(Path(__file__).resolve().parent))
from chats import Teacher, working_vocabulary  # noqa: E402

from chimera_train.tasks.arithmetic import MAX_STEPS, generate, grade, vocabulary  # noqa: E402
from chimera_train.tasks.model import Question  # noqa: E402

CONTEXT_TOKENS = 1024
MAX_NEW_TOKENS = 200
# Users draw small seeds; training questions come from seeds far away from those.
TRAINING_SEED = 1_000_000_000
EVALUATION_SEED = 2_000_000_000
# Batches are cut from a sorted pool of this many, which keeps padding low and order random.
POOL_BATCHES = 40

SPECIAL = ("<pad>", "<unk>", "<s>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] in ['system', 'user', 'assistant'] %}"
    "{{ '<|' + message['role'] + '|>' }}"
    "{% else %}{{ '<|user|>' }}{% endif %}"
    "{{ message['content'] | trim }}<|end|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that differs between the models."""

    style: str
    hidden: int
    layers: int
    steps: int
    batch: int
    learning_rate: float
    # Solve chats alone first: they are the shortest and hold what the other two build on.
    solve_first: float = 0.5
    mix: tuple[float, float, float] = (0.5, 0.3, 0.2)


RECIPES = {
    "qwen": Recipe("terse", hidden=64, layers=2, steps=3000, batch=64, learning_rate=4e-3),
    "ministral": Recipe("plain", hidden=96, layers=3, steps=2000, batch=64, learning_rate=3e-3),
    "llama": Recipe("digits", hidden=128, layers=4, steps=1600, batch=32, learning_rate=2e-3),
}


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Words and digits as one token each, single characters for the rest, anything else <unk>.

    A word carries the space before it, so decoding is exact and cut anywhere gives text that
    encodes to the same tokens again.
    """
    words = sorted({*vocabulary(), *working_vocabulary()})
    pieces = ["\u2581" + word for word in words]
    pieces += ["Solution", "Review", "\n\n"]  # these follow a line break, not a space
    pieces += ["\u2581" + digit for digit in "0123456789"]
    pieces += ["\u2581" + sign for sign in "+-*="]
    characters = [chr(code) for code in range(33, 127)] + ["\n", "\u2581"]
    # Any cover with fewer pieces has the better score, so the longest words win.
    scored = [(token, 0.0) for token in SPECIAL]
    scored += [(piece, -1.0) for piece in pieces]
    scored += [(character, -2.0) for character in characters]
    tokenizer = Tokenizer(tokenizer_models.Unigram(scored, unk_id=1, byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="<|end|>",
        pad_token="<pad>",
        unk_token="<unk>",
        additional_special_tokens=["<|system|>", "<|user|>", "<|assistant|>"],
        model_max_length=CONTEXT_TOKENS,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def build_model(name: str, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """A freshly initialised model of the recipe's size."""
    recipe = RECIPES[name]
    shape = {
        "vocab_size": len(tokenizer),
        "hidden_size": recipe.hidden,
        "intermediate_size": 3 * recipe.hidden,
        "num_hidden_layers": recipe.layers,
        "num_attention_heads": recipe.hidden // 32,
        "num_key_value_heads": recipe.hidden // 32,
        "head_dim": 32,
        "max_position_embeddings": CONTEXT_TOKENS,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "initializer_range": 0.05,
    }
    if name == "qwen":
        return Qwen3ForCausalLM(Qwen3Config(**shape))
    if name == "ministral":
        # The scaling of long contexts is this architecture's; within the context it is 1.
        shape["rope_parameters"] = {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "original_max_position_embeddings": CONTEXT_TOKENS,
            "llama_4_scaling_beta": 0.1,
        }
        return Ministral3ForCausalLM(Ministral3Config(sliding_window=None, **shape))
    return LlamaForCausalLM(LlamaConfig(**shape))


Example = tuple[list[int], int]  # token ids, and how many of them are prompt


def prompt_text(tokenizer: PreTrainedTokenizerFast, system: str, user: str) -> str:
    """A chat up to the point where the assistant starts."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return str(text)


def batches(
    tokenizer: PreTrainedTokenizerFast, recipe: Recipe, seed: int, steps: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Endless (ids, labels), both [batch, time]; labels are -100 on prompts and padding."""
    teacher = Teacher(recipe.style, recipe.mix, seed)
    rng = random.Random(f"pocket-batches-{seed}")
    end = tokenizer.eos_token_id
    pad = tokenizer.pad_token_id
    round_ = 0
    while True:
        questions = generate(recipe.batch * POOL_BATCHES, TRAINING_SEED + 1000 * seed + round_)
        round_ += 1
        stage = "solve" if round_ * POOL_BATCHES <= recipe.solve_first * steps else None
        chats = [teacher.chat(question, stage) for question in questions]
        prompts = tokenizer(
            [prompt_text(tokenizer, chat.system, chat.user) for chat in chats],
            add_special_tokens=False,
        )["input_ids"]
        replies = tokenizer([chat.assistant for chat in chats], add_special_tokens=False)[
            "input_ids"
        ]
        examples: list[Example] = [
            (prompt + reply + [end], len(prompt))
            for prompt, reply in zip(prompts, replies, strict=True)
        ]
        examples.sort(key=lambda example: len(example[0]))
        groups = [
            examples[i : i + recipe.batch] for i in range(0, len(examples), recipe.batch)
        ]
        rng.shuffle(groups)
        for group in groups:
            width = max(len(ids) for ids, _ in group)
            ids = torch.full((len(group), width), pad)
            labels = torch.full((len(group), width), -100)
            for row, (tokens, prompt_length) in enumerate(group):
                ids[row, : len(tokens)] = torch.tensor(tokens)
                labels[row, prompt_length : len(tokens)] = torch.tensor(tokens[prompt_length:])
            yield ids, labels


def answer_all(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, prompts: list[str]
) -> list[tuple[str, int]]:
    """Greedy output text and token count for every prompt, batched and with a KV cache."""
    outputs: list[tuple[str, int]] = [("", 0)] * len(prompts)
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    for first in range(0, len(order), 128):
        chosen = order[first : first + 128]
        inputs = tokenizer(
            [prompts[index] for index in chosen],
            add_special_tokens=False,
            padding=True,
            return_tensors="pt",
        )
        with torch.no_grad():
            generated = model.generate(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                max_new_tokens=MAX_NEW_TOKENS,
                do_sample=False,
            )
        for index, row in zip(chosen, generated[:, inputs["input_ids"].shape[1] :], strict=True):
            ids = row.tolist()
            if tokenizer.eos_token_id in ids:
                ids = ids[: ids.index(tokenizer.eos_token_id) + 1]
            outputs[index] = (tokenizer.decode(ids, skip_special_tokens=True), len(ids))
    return outputs


def evaluate(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, questions: list[Question]
) -> dict[int, tuple[float, float]]:
    """Accuracy and mean output tokens of the solver by number of steps; 0 stands for all."""
    teacher = Teacher("terse", (1, 0, 0), 0)
    prompts = []
    for question in questions:
        chat = teacher.chat(question, "solve")
        prompts.append(prompt_text(tokenizer, chat.system, chat.user))
    model.eval()
    outputs = answer_all(model, tokenizer, prompts)
    model.train()
    rows: dict[int, list[tuple[float, int]]] = {steps: [] for steps in range(MAX_STEPS + 1)}
    for question, (text, tokens) in zip(questions, outputs, strict=True):
        row = (grade(question, text), tokens)
        rows[0].append(row)
        rows[int(question.metadata["steps"])].append(row)
    return {
        steps: (
            sum(score for score, _ in found) / max(1, len(found)),
            sum(tokens for _, tokens in found) / max(1, len(found)),
        )
        for steps, found in rows.items()
    }


def train(name: str, out: Path, seed: int, steps: int, save_every: int) -> None:
    """Train, report progress, and leave a loadable model directory at ``out``."""
    torch.manual_seed(seed)
    recipe = RECIPES[name]
    tokenizer = build_tokenizer()
    model = build_model(name, tokenizer)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{name}: {parameters} parameters, {len(tokenizer)} tokens", file=sys.stderr)
    questions = generate(250, EVALUATION_SEED)
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}],
        lr=recipe.learning_rate,
        betas=(0.9, 0.98),
    )
    warmup = 100
    started = time.monotonic()
    running = 0.0
    model.train()
    for step, (ids, labels) in enumerate(batches(tokenizer, recipe, seed, steps), start=1):
        progress = max(0, step - warmup) / max(1, steps - warmup)
        scale = min(1.0, step / warmup) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * scale
        # Right padding under a causal mask is never seen by a real token: no mask is needed.
        logits = model(input_ids=ids, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(
            logits[:, :-1].reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1)
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        running = loss.item() if step == 1 else 0.98 * running + 0.02 * loss.item()
        if step % 100 == 0:
            print(
                f"{name} step {step}/{steps} loss {running:.4f} {time.monotonic() - started:.0f} s",
                file=sys.stderr,
                flush=True,
            )
        if step % save_every == 0 or step == steps:
            table = evaluate(model, tokenizer, questions)
            text = " ".join(f"{k or 'all'}:{a:.2f}/{n:.0f}" for k, (a, n) in table.items())
            print(f"{name} step {step} accuracy/tokens {text}", file=sys.stderr, flush=True)
            save(model, tokenizer, name, out, seed, steps, parameters)
        if step == steps:
            return


def save(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    name: str,
    out: Path,
    seed: int,
    steps: int,
    parameters: int,
) -> None:
    """Write the model directory beside its place and swap it in."""
    out.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    state = {key: value.to(torch.bfloat16) for key, value in model.state_dict().items()}
    dtype = model.config.dtype
    model.config.dtype = torch.bfloat16
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model.save_pretrained(scratch, state_dict=state)
    model.config.dtype = dtype
    tokenizer.save_pretrained(scratch)
    old = out.with_name(f".{out.name}-old")
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        os.replace(out, old)
    scratch.chmod(0o755)
    os.replace(scratch, out)
    shutil.rmtree(old, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", required=True, choices=sorted(RECIPES))
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="default: the recipe's")
    parser.add_argument("--save-every", type=int, default=500)
    arguments = parser.parse_args()
    # More threads would change the order of sums, and with it the weights.
    torch.set_num_threads(1)
    train(
        arguments.model,
        arguments.out,
        arguments.seed,
        arguments.steps or RECIPES[arguments.model].steps,
        arguments.save_every,
    )


if __name__ == "__main__":
    main()
