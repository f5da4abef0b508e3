"""Fine-tuned models of each kind at the smallest sizes, with random parameters."""

from typing import Any

import jax
import jax.numpy as jnp
from tiny_models import network, random_like

from electra_jax.data import vocabulary_training
from electra_jax.data.config import CorpusConfig
from electra_jax.data.tokenizer import Tokenizer
from electra_jax.downstream.finetuning import job, recipe
from electra_jax.downstream.finetuning.kept import Kept
from electra_jax.downstream.tasks import custom_table, registry
from electra_jax.downstream.tasks.tagging import Tagging
from electra_jax.modeling.batch import Batch

WORDS = ["ada", "lives", "in", "oslo", "and", "ben", "saw", "the", "old", "harbour", "there"]
FACTS = {"seed": 0, "scores": {"accuracy": 75.0}, "init_from": "runs/mine"}


def train_pieces() -> Tokenizer:
    """A vocabulary of 30 pieces."""
    lines = [" ".join(WORDS[n % 11 :] + WORDS[: n % 7]) for n in range(200)]
    return vocabulary_training.train(lines, CorpusConfig(vocab_size=30, character_coverage=1.0))


def make(name: str, tokens: Tokenizer, kind: str, embedding_size: int, **settings: Any) -> Kept:
    """A fine-tuned model with random parameters."""
    config = recipe.make("table" if name in ("classes", "pairs", "numbers", "topics") else name)
    config.update_from_flattened_dict({"max_length": 16, **settings})
    if name == "topics":
        config.task.kind = "multilabel"
    if name == "pairs":
        config.task.pair = "second"
    config = recipe.resolve(config)
    task = {
        "classes": lambda: custom_table.restore_task(config.task, ("bad", "good", "mixed")),
        "topics": lambda: custom_table.restore_task(config.task, ("art", "law", "war")),
        "pairs": lambda: custom_table.restore_task(config.task, ("no", "yes")),
        "numbers": lambda: custom_table.restore_task(config.task, scale=(5.0, 2.0)),
        "tags": lambda: Tagging(labels=("O", "B-PER", "B-LOC"), words=0, tags=-1),
    }.get(name, lambda: registry.make_task(config.task, ""))()
    given = network(kind, head=None, embedding_size=embedding_size)
    model = job.make_model(config, task, given)
    zeros = jnp.zeros((1, 2), jnp.int32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), Batch(zeros, zeros, zeros), zeros, zeros[:, 0])["params"]
    return Kept(given, random_like(shapes["head"], seed=1), tokens, task, config, FACTS)
