"""Fine-tuning a Hugging Face checkpoint here gives the losses of a plain PyTorch loop over the same batches."""
# ruff: noqa: E402 (nothing else is imported where there is no PyTorch)

import pytest

_REASON = "compares with Hugging Face's PyTorch classes: pip install torch transformers"
torch = pytest.importorskip("torch", reason=_REASON)
transformers = pytest.importorskip("transformers", reason=_REASON)

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np

from electra_jax.data import tokenizer
from electra_jax.downstream.finetuning import multi_seed, recipe
from electra_jax.downstream.tasks.task import Rows
from electra_jax.loading.huggingface import directory
from electra_jax.modeling.downstream import Downstream

STEPS, LAYERS, VOCABULARY, OUTPUTS = 20, 3, 300, 3
PAPER = recipe.resolve(recipe.make("cola"))
# A warm-up of 2.4 steps: it need not end at a step.
OPTIM = dataclasses.replace(PAPER.optim, learning_rate=1e-3, weight_decay=0.01, warmup=0.12)
RECIPE = dataclasses.replace(PAPER, epochs=1, batch_size=8, optim=OPTIM)
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "intermediate_size": 96,
}


def electra():
    config = transformers.ElectraConfig(
        **SHAPE, embedding_size=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    return transformers.ElectraModel(config)


def modernbert():
    special = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0)
    config = transformers.ModernBertConfig(
        **SHAPE, **special, max_position_embeddings=128, attn_implementation="eager", reference_compile=False
    )
    return transformers.ModernBertModel(config)


def rows(kind):
    rng = np.random.default_rng(0)
    lengths = rng.integers(6, 40, STEPS * RECIPE.batch_size)
    ids = [[2, *rng.integers(5, VOCABULARY, length - 2).tolist(), 3] for length in lengths]
    second = [int(rng.integers(2, length + 1)) for length in lengths]
    drawn = rng.integers(0, OUTPUTS, len(ids)).astype(np.int32)
    target = drawn if kind == "classification" else drawn.astype(np.float32) / 2
    return Rows(ids, second, np.arange(len(ids)), {"target": target})


def power(name):
    """Of the layer decay, by the name that transformers gives a parameter."""
    if "embed" in name:
        return LAYERS + 1
    layer = re.search(r"layers?\.(\d+)\.", name)
    return LAYERS - int(layer[1]) if layer else 1


def by_torch(model, head, text, kind):
    """The losses of a plain loop: the reference's Adam, layer-wise rates, linear warm-up and decay."""
    named = [(name, p, power(name)) for name, p in model.named_parameters()]
    named += [(name, p, 0) for name, p in head.named_parameters()]
    moments = [(torch.zeros_like(p), torch.zeros_like(p)) for _, p, _ in named]
    plan, found = multi_seed.plan_steps(RECIPE, text, [0]), []
    for step, (length, (numbers,)) in enumerate(plan):
        part = text.make_batch(numbers, RECIPE.batch_size, length, tokenizer.OWN)
        batch = {name: torch.from_numpy(value) for name, value in part.inputs._asdict().items()}
        target = torch.from_numpy(part.targets["target"])
        inputs = {"input_ids": batch["input_ids"].long(), "attention_mask": batch["sequence_ids"].long()}
        if model.config.model_type == "electra":
            inputs["token_type_ids"] = batch["token_type_ids"].long()
        scores = head(model.train()(**inputs).last_hidden_state[:, 0])
        if kind == "classification":
            loss = torch.nn.functional.cross_entropy(scores, target.long())
        else:
            loss = torch.nn.functional.mse_loss(scores[:, 0], target)
        found.append(loss.item())
        summed = loss * len(target)  # the gradient of the sum is clipped
        grads = torch.autograd.grad(summed, [p for _, p, _ in named], allow_unused=True)
        grads = [torch.zeros_like(p) if g is None else g for g, (_, p, _) in zip(grads, named, strict=True)]
        norm = torch.sqrt(sum((g**2).sum() for g in grads))
        scale = min(1.0, 1.0 / norm.item())
        rate = OPTIM.learning_rate * (1 - step / len(plan)) * min(1.0, step / (OPTIM.warmup * len(plan)))
        with torch.no_grad():
            for (name, p, exponent), g, (m, v) in zip(named, grads, moments, strict=True):
                m.mul_(0.9).add_(0.1 * scale * g)
                v.mul_(0.999).add_(0.001 * (scale * g) ** 2)
                update = m / (v.sqrt() + 1e-6)
                if not name.endswith("bias") and "norm" not in name.lower():
                    update += OPTIM.weight_decay * p
                p -= rate * OPTIM.layer_decay**exponent * update
    return found


@pytest.mark.parametrize(("make", "kind"), [(electra, "classification"), (modernbert, "regression")])
def test_the_losses_of_the_first_steps(make, kind, tmp_path):
    torch.manual_seed(0)
    theirs = make()
    theirs.save_pretrained(tmp_path)
    found = directory.read(tmp_path)
    outputs = OUTPUTS if kind == "classification" else 1
    config = found.encoder.config
    model = Downstream(config, kind, outputs)
    assert config.encoder.dropout == 0
    text = rows(kind)
    ours, losses = multi_seed.train(model, found.encoder, RECIPE, text, tokenizer.OWN, [0])
    # The head that a seed begins with.
    fresh = multi_seed.init_states(jnp.zeros(1, jnp.uint32), {}, model=model, optim=OPTIM).params["head"]["dense"]
    head = torch.nn.Linear(SHAPE["hidden_size"], outputs)
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(np.array(fresh["kernel"][0]).T))
        head.bias.copy_(torch.from_numpy(np.array(fresh["bias"][0])))
    expected = by_torch(theirs, head, text, kind)
    assert len(expected) == STEPS
    np.testing.assert_allclose(losses[0], expected, rtol=2e-4, atol=2e-6)
    assert abs(expected[-1] - expected[0]) > 1e-2  # it has moved
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(jax.device_get(ours)))
