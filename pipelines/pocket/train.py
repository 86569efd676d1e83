"""Train one pocket model from nothing: data, tokenizer, weights and model card from one seed.

    python pipelines/pocket/train.py --model qwen --out chimera_train/pool/pocket/qwen --seed 0

Nothing is downloaded. The length of the training is a number of steps, so that one machine with
one thread count always gives the same weights. Progress goes to stderr.
"""

from __future__ import annotations

import argparse
import copy
import math
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
from chats import Teacher, working_vocabulary

from chimera_train.tasks.arithmetic import MAX_STEPS, generate, grade, vocabulary
from chimera_train.tasks.model import Question
from chimera_train.workflows.model import load_workflow, render, verdict

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
    # Solve chats alone for this share of the steps: they are the shortest and hold what verifying
    # and revising build on. Then the mix.
    solve_first: float
    mix: tuple[float, float, float]
    misreadings: float
    compare: bool
    matrix_rate: float = 0.02


RECIPES = {
    "qwen": Recipe(
        "terse",
        hidden=64,
        layers=2,
        steps=560,
        batch=32,
        learning_rate=4e-3,
        solve_first=0.5,
        mix=(0.4, 0.4, 0.2),
        misreadings=0.7,
        compare=True,
    ),
    "ministral": Recipe(
        "plain",
        hidden=96,
        layers=3,
        steps=800,
        batch=32,
        learning_rate=3e-3,
        solve_first=0.45,
        mix=(0.25, 0.45, 0.3),
        misreadings=0.7,
        compare=False,
    ),
    "llama": Recipe(
        "digits",
        hidden=128,
        layers=3,
        steps=1000,
        batch=32,
        learning_rate=3e-3,
        solve_first=0.4,
        mix=(0.4, 0.4, 0.2),
        misreadings=0.5,
        compare=False,
    ),
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
        bos_token="<s>",  # noqa: S106
        eos_token="<|end|>",  # noqa: S106
        pad_token="<pad>",  # noqa: S106
        unk_token="<unk>",  # noqa: S106
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
    teacher = Teacher(recipe.style, recipe.mix, seed, recipe.misreadings, recipe.compare)
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
        groups = [examples[i : i + recipe.batch] for i in range(0, len(examples), recipe.batch)]
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


Table = dict[int, tuple[float, float]]  # steps (0: all) -> accuracy, mean output tokens


def evaluate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    questions: list[Question],
    workflow_name: str = "direct",
) -> Table:
    """Run a workflow greedily on every question; tokens are summed over the stages that ran."""
    workflow = load_workflow(workflow_name)
    values = [{"question": question.text} for question in questions]
    tokens = [0] * len(questions)
    model.eval()
    for stage_id in workflow.order():
        stage = workflow.stage(stage_id)
        active = [
            index
            for index, known in enumerate(values)
            if stage.when is None or verdict(known.get(stage.when.stage, "")) == stage.when.verdict
        ]
        prompts = [
            prompt_text(tokenizer, render(stage.system, values[i]), render(stage.user, values[i]))
            for i in active
        ]
        for index, (text, count) in zip(active, answer_all(model, tokenizer, prompts), strict=True):
            values[index][stage_id] = text
            tokens[index] += count
    model.train()
    rows: dict[int, list[tuple[float, int]]] = {steps: [] for steps in range(MAX_STEPS + 1)}
    for question, known, count in zip(questions, values, tokens, strict=True):
        answer = next(known[stage] for stage in workflow.answer if stage in known)
        for steps in (0, int(question.metadata["steps"])):
            rows[steps].append((grade(question, answer), count))
    return {
        steps: (
            sum(score for score, _ in found) / max(1, len(found)),
            sum(count for _, count in found) / max(1, len(found)),
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
    questions = generate(1000, EVALUATION_SEED)
    # With AdamW alone the same loss took about twice the steps.
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.dim() < 2 or "embed" in n]
    optimizers = [
        torch.optim.Muon(matrices, lr=recipe.matrix_rate, weight_decay=0.05),
        torch.optim.AdamW(others, lr=recipe.learning_rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    warmup = 100
    started = time.monotonic()
    running = 0.0
    model.train()
    for step, (ids, labels) in enumerate(batches(tokenizer, recipe, seed, steps), start=1):
        progress = max(0, step - warmup) / max(1, steps - warmup)
        scale = min(1.0, step / warmup) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))
        optimizers[0].param_groups[0]["lr"] = recipe.matrix_rate * scale
        optimizers[1].param_groups[0]["lr"] = recipe.learning_rate * scale
        # Right padding under a causal mask is never seen by a real token: no mask is needed.
        logits = model(input_ids=ids, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(
            logits[:, :-1].reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1)
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        running = loss.item() if step == 1 else 0.95 * running + 0.05 * loss.item()
        if step % 100 == 0:
            print(
                f"{name} step {step}/{steps} loss {running:.4f} {time.monotonic() - started:.0f} s",
                file=sys.stderr,
                flush=True,
            )
        if step % save_every == 0 or step == steps:
            count = 1000 if step == steps else 250
            workflows = ("direct", "math") if step == steps else ("direct",)
            # Measured is what will be loaded: the weights rounded to bfloat16.
            rounded = copy.deepcopy(model).to(torch.bfloat16)
            tables = {w: evaluate(rounded, tokenizer, questions[:count], w) for w in workflows}
            for workflow, table in tables.items():
                text = " ".join(f"{k or 'all'}:{a:.2f}/{n:.0f}" for k, (a, n) in table.items())
                print(f"{name} step {step} {workflow} accuracy/tokens {text}", file=sys.stderr)
            readme = card(name, rounded, tokenizer, seed, step, count, tables)
            save(rounded, tokenizer, out, readme)
        if step == steps:
            return


CARD = """# pocket-{name}

A {parameters:,}-parameter `{architecture}` that solves, checks and revises arithmetic word problems
of one to five steps, so that a pool of real engines can be tried without a GPU and without a
download. It knows nothing else. It belongs to the three pocket models of chimera-train, which share
a tokenizer of {vocabulary} words, digits and characters and differ in size and in how much working
they write; this one writes {style_text}.

## Data

Word problems from `chimera_train.tasks.arithmetic` with seeds from {training_seed} up, and their
workings, made by `pipelines/pocket/chats.py`. The chats are those of the workflow
`chimera_train/workflows/math.yaml`: solve, verify (half of the proposed solutions hold a mistake)
and revise. No text of others was used.

## Training

    python pipelines/pocket/train.py --model {name} --seed {seed} \\
        --out chimera_train/pool/pocket/{name}

{steps} steps of {batch} chats, Muon for the matrices and AdamW for the rest with a cosine schedule,
loss on the assistant's tokens only, one CPU thread. The same machine, library versions and seed
give the same weights. The weights are bfloat16.

## Measured

Greedy, bfloat16, {count} questions of seed {evaluation_seed}, none of them used in training;
accuracy in percent / mean output tokens of the whole workflow, by number of steps:

| workflow | all | 1 | 2 | 3 | 4 | 5 |
|---|---|---|---|---|---|---|
{rows}

It makes mistakes by design, more of them the more steps a problem has.
"""
STYLE_TEXTS = {
    "terse": "only the equations",
    "plain": "each operation and its equation",
    "digits": "each operation column by column",
}


def card(
    name: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    seed: int,
    steps: int,
    count: int,
    tables: dict[str, Table],
) -> str:
    """The README.md of a model directory."""
    rows = [
        f"| {workflow} | "
        + " | ".join(f"{100 * accuracy:.0f} / {tokens:.0f}" for accuracy, tokens in table.values())
        + " |"
        for workflow, table in tables.items()
    ]
    return CARD.format(
        name=name,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        architecture=type(model).__name__,
        vocabulary=len(tokenizer),
        style_text=STYLE_TEXTS[RECIPES[name].style],
        training_seed=TRAINING_SEED,
        seed=seed,
        steps=steps,
        batch=RECIPES[name].batch,
        count=count,
        evaluation_seed=EVALUATION_SEED,
        rows="\n".join(rows),
    )


def save(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, out: Path, readme: str
) -> None:
    """Write the model directory beside its place and swap it in."""
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    model.save_pretrained(scratch)
    tokenizer.save_pretrained(scratch)
    (scratch / "README.md").write_text(readme, encoding="utf-8")
    scratch.chmod(0o755)
    for path in scratch.iterdir():
        path.chmod(0o644)
    old = out.with_name(f".{out.name}-old")
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        out.replace(old)
    scratch.replace(out)
    shutil.rmtree(old, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
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
