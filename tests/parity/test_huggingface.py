"""The same weights in transformers' PyTorch classes give the same states, logits and losses, in float32.

The sizes keep their widths, heads, FFNs, embeddings and generators; layers, vocabulary and sequences are fewer.
"""
# ruff: noqa: E402 (nothing else is imported where there is no PyTorch)

import pytest

_REASON = "compares with Hugging Face's PyTorch classes: pip install torch transformers"
torch = pytest.importorskip("torch", reason=_REASON)
transformers = pytest.importorskip("transformers", reason=_REASON)

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import rounding
from cli_runs import ROOT, make_objective
from ml_collections import ConfigDict

from electra_jax import train_config
from electra_jax.config import config_file
from electra_jax.data.tokenizer import CLS, SEP
from electra_jax.loading.huggingface import hf_config, weights
from electra_jax.modeling import electra as networks
from electra_jax.modeling import subnetwork
from electra_jax.modeling.batch import Batch
from electra_jax.objectives import electra, masking
from electra_jax.objectives.spec import Inputs, Objective

VOCABULARY, LAYERS, LENGTH = 1000, 2, 32  # ours is padded to 1024
LOCAL_WINDOW = 8  # 4 positions to each side: fewer than there are
# Each row: lengths of its segments, without CLS and SEP; what remains is padding.
ROWS = [(14, 15), (9, 12), (20,), (2, 4), (3,)]

# Of the paper and the reference: embedding size, layers; width, FFN, heads of the discriminator and of the generator.
SIZES = {
    "small": (128, 12, (256, 1024, 4), (64, 256, 1)),
    "base": (768, 12, (768, 3072, 12), (256, 1024, 4)),
    "large": (1024, 24, (1024, 4096, 16), (256, 1024, 4)),
}
sizes = pytest.mark.parametrize("size", SIZES)


class Ours(NamedTuple):
    """What an objective computes, all of it on the same masked batch.

    Attributes:
      masked, loss, metrics: the batch and what a step would minimize and measure.
      mlm: states and logits at every position of the masked text: of the generator, or of the encoder if it has none.
      found: the generator's fakes; None where there is no generator.
      discriminator: states and logits at every position of the text with the fakes.
    """

    masked: masking.Masked
    loss: Any
    metrics: dict[str, Any]
    mlm: tuple[Any, Any]
    found: electra.Corrupted | None = None
    discriminator: tuple[Any, Any] | None = None


def settings(size: str, arg: str = "", **model: Any) -> ConfigDict:
    """The size's config with few layers, in float32."""
    config = config_file.load(ROOT / "configs" / f"{size}.py", arg)
    config.model.update(layers=LAYERS, dtype="float32", **model)
    config.data.update(vocab_size=VOCABULARY, seq_length=LENGTH)
    train_config.resolve(config)
    return config


@functools.cache
def batch() -> Batch:
    """Pairs and single segments of several lengths."""
    rng = np.random.default_rng(0)
    ids, types, sequences = np.zeros((3, len(ROWS), LENGTH), np.int32)
    for row, segments in enumerate(ROWS):
        position = 1
        ids[row, 0] = CLS
        for segment, length in enumerate(segments):
            end = position + length
            ids[row, position:end], ids[row, end] = rng.integers(5, VOCABULARY, length), SEP
            types[row, position : end + 1] = segment
            position = end + 1
        sequences[row, :position] = 1
    return Batch(ids, types, sequences)


REAL = batch().sequence_ids == 1


def shapes(objective: Objective) -> Any:
    ids = jax.ShapeDtypeStruct((1, 8), jnp.int32)
    return jax.eval_shape(objective.model.init, jax.random.key(0), Batch(ids, ids, ids))["params"]


def random_params(objective: Objective) -> Any:
    """Every parameter random, biases and layer norms too.

    Tables and the norms' scales are small, so that 1e-5 in the epsilon of a layer norm, alone, moves results by more
    than rounding can; what the activations read is not, for they differ where it is about 1.
    """
    rng = np.random.default_rng(1)

    def draw(path: Any, like: Any) -> np.ndarray:
        within = jax.tree_util.keystr(path, simple=True, separator=".")
        noise = rng.standard_normal(like.shape, np.float32)
        if within.endswith(("bias", "scale")):
            return np.float32(0.03) * noise + np.float32(0.1 if within.endswith("scale") else 0)
        if not within.endswith("kernel"):
            return noise / np.float32(3 * like.shape[-1] ** 0.5)  # a table
        shape = like.shape[1:] if "layers" in within else like.shape
        size = np.float32(3 if "ffn_in" in within else 1)
        return size * noise / np.float32(math.prod(shape[: 2 if "attention.out" in within else 1]) ** 0.5)

    return jax.tree_util.tree_map_with_path(draw, shapes(objective))


def run_ours(o: Objective, params: Any) -> Ours:
    network = "generator" if o.system.generator else "encoder"

    @jax.jit
    def run(params: Any, inputs: Batch) -> Ours:
        masked = o.mask(jax.random.key(2), inputs, jnp.int32(0))
        x = Inputs(masked, masking.count(masked), jnp.zeros((), jnp.int32))
        loss, measured = o.loss(o.stages[0], params, x)
        text = masked.batch._replace(input_ids=masked.input_ids)
        if network == "encoder":
            states = networks.encode(o.model, params, text)
            return Ours(masked, loss, measured, (states, networks.mlm_logits(o.model, params, states)))
        states = networks.generator_states(o.model, params, text)
        ours = Ours(masked, loss, measured, (states, networks.generator_logits(o.model, params, states)))
        found = electra.corrupt(o, params, x)
        states = networks.encode(o.model, params, masked.batch._replace(input_ids=found.input_ids))
        scores = networks.discriminator_logits(o.model, params, states, text.sequence_ids)
        return ours._replace(found=found, discriminator=(states, scores))

    return jax.device_get(run(params, batch()))


def exported(objective: Objective, params: Any, network: str, head: str) -> tuple[Any, dict[str, Any]]:
    """(PyTorch class, its state): a network of ours by the names of theirs, the tied output weight by both of its."""
    found = subnetwork.extract(objective.model.config, params, network)
    assert found is not None
    encoder, state = found.config.encoder, weights.export(found, head)
    if head == "mlm_head":
        word_table = weights.word_table(encoder.architecture, prefixed=True)
        state.setdefault(encoder.architecture.decoder, state[word_table])
    return getattr(transformers, hf_config.class_name(encoder, head)), state


def build(objective: Objective, params: Any, network: str, head: str, config: Any) -> Any:
    """The PyTorch model with our weights; load_state_dict refuses missing, unexpected and misshapen ones.

    Nothing is set aside: `position_ids` is a buffer that is not saved.
    """
    kind, state = exported(objective, params, network, head)
    model = kind(config).eval()
    model.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in state.items()}, strict=True)
    return model


class Theirs(NamedTuple):
    """States and logits at real positions, the loss, which is 0 without labels; or of each what rounding explains."""

    states: Any
    logits: Any
    loss: Any


def run_theirs(model: Any, input_ids: np.ndarray, labels: np.ndarray | None = None) -> tuple[Theirs, Theirs]:
    """(results, bounds) for a text with the batch's padding and, where the model has them, its segments.

    Of a token classification, which has two labels, the logit is the second one's lead.
    """
    given = {"input_ids": input_ids, "attention_mask": batch().sequence_ids}
    if model.config.model_type == "electra":
        given["token_type_ids"] = batch().token_type_ids
    given = {name: torch.from_numpy(np.array(value, np.int64)) for name, value in given.items()}
    if labels is not None:
        given["labels"] = torch.from_numpy(labels)

    def outputs(model: Any) -> Theirs:
        with torch.no_grad():
            out = model(**given)
            states = model.base_model(**{name: given[name] for name in given if name != "labels"}).last_hidden_state
        logits = out.logits.numpy()
        if type(model).__name__.endswith("TokenClassification"):
            logits = logits[..., 1] - logits[..., 0]
        return Theirs(states.numpy()[REAL], logits[REAL], np.float32(0 if labels is None else out.loss))

    return outputs(model), rounding.torch_bounds(model, outputs, model.config.intermediate_size, draws=2)


def electra_config(vocab_size: int, embedding: int, layers: int, network: tuple[int, int, int]) -> Any:
    width, ffn, heads = network
    return transformers.ElectraConfig(
        vocab_size=vocab_size,
        embedding_size=embedding,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=ffn,
        hidden_act="gelu",
        max_position_embeddings=512,
        type_vocab_size=2,
        layer_norm_eps=1e-12,
        pad_token_id=0,
        attn_implementation="eager",
    )


def modernbert_config(model: Any, **more: Any) -> Any:
    return transformers.ModernBertConfig(
        vocab_size=VOCABULARY,
        hidden_size=model.width,
        intermediate_size=model.ffn,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        local_attention=LOCAL_WINDOW,
        global_attn_every_n_layers=3,
        hidden_activation=model.modernbert.activation,
        # The defaults are of a larger vocabulary.
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0),
        attn_implementation="eager",
        **more,
    )


def mlm_labels(masked: masking.Masked) -> np.ndarray:
    """[B, L]: the originals where they were masked, -100 elsewhere."""
    labels = np.full(masked.input_ids.shape, -100, np.int64)
    row, entry = np.nonzero(masked.weights)
    labels[row, masked.positions[row, entry]] = masked.targets[row, entry]
    return labels


def agree(ours: tuple[np.ndarray, np.ndarray], theirs: tuple[Theirs, Theirs]) -> None:
    """At real positions; what stands at padding is not used by anyone, and is not the same."""
    for found, expected, bound in zip(ours, *theirs, strict=False):
        np.testing.assert_allclose(found[REAL][..., : expected.shape[-1]], expected, rtol=0, atol=bound)


@functools.cache
def both(size: str) -> tuple[Ours, tuple[Theirs, Theirs], tuple[Theirs, Theirs]]:
    """ELECTRA of a size: ours, and results and bounds of their generator and their discriminator."""
    embedding, _, discriminator, generator = SIZES[size]
    objective = make_objective(settings(size), VOCABULARY)
    params = random_params(objective)
    ours = run_ours(objective, params)
    config = electra_config(VOCABULARY, embedding, LAYERS, generator)
    model = build(objective, params, "generator", "mlm_head", config)
    theirs_masked = run_theirs(model, ours.masked.input_ids, mlm_labels(ours.masked))
    config = electra_config(VOCABULARY, embedding, LAYERS, discriminator)
    model = build(objective, params, "encoder", "discriminator_head", config)
    return ours, theirs_masked, run_theirs(model, ours.found.input_ids, ours.found.labels.astype(np.int64))


@sizes
def test_generator_states_and_logits_agree(size):
    ours, theirs, _ = both(size)
    agree(ours.mlm, theirs)


@sizes
def test_discriminator_states_and_logits_agree(size):
    ours, _, theirs = both(size)
    agree(ours.discriminator, theirs)


@sizes
def test_losses_agree(size):
    ours, (mlm, mlm_bound), (detection, bound) = both(size)
    masked, labels = ours.masked.weights > 0, ours.found.labels
    assert 0 < labels.sum() <= masked.sum() < REAL.sum()
    assert ours.metrics["mlm_loss"].value == pytest.approx(mlm.loss, rel=0, abs=mlm_bound.loss)
    assert ours.metrics["disc_loss"].value == pytest.approx(detection.loss, rel=0, abs=bound.loss)
    total, total_bound = (of_mlm.loss + 50 * of_both.loss for of_mlm, of_both in ((mlm, detection), (mlm_bound, bound)))
    assert ours.loss == pytest.approx(total, rel=0, abs=total_bound)


@sizes
@pytest.mark.parametrize(
    ("network", "head", "shape", "counts"),
    [
        ("encoder", "discriminator_head", 2, {"small": 203, "base": 201, "large": 393}),
        ("generator", "mlm_head", 3, {"small": 205, "base": 205, "large": 397}),
    ],
)
def test_full_sizes_have_the_names_and_shapes_of_theirs(size, network, head, shape, counts):
    objective = make_objective(config_file.load(ROOT / "configs" / f"{size}.py"), 30522)
    nothing = jax.tree.map(lambda like: np.broadcast_to(np.float32(0), like.shape), shapes(objective))
    kind, state = exported(objective, nothing, network, head)
    with torch.device("meta"):
        theirs = kind(electra_config(30522, *SIZES[size][:2], SIZES[size][shape]))
    expected = {name: tuple(value.shape) for name, value in theirs.state_dict().items()}
    assert {name: value.shape for name, value in state.items()} == expected
    assert len(expected) == counts[size]


def test_word_table_is_the_output_weight_of_theirs_too():
    """So that no output weight of its own hides behind the one name too many."""
    with torch.device("meta"):
        model = transformers.ElectraForMaskedLM(electra_config(VOCABULARY, 128, 1, (64, 256, 1)))
    assert model.generator_lm_head.weight is model.electra.embeddings.word_embeddings.weight


def modernbert(arg: str, activation: str = "gelu") -> tuple[Objective, Any, Any]:
    """An objective with a ModernBERT of two global and two local layers, as wide as its table; its weights; its model.

    There is no such size in the paper: this is Small's with a wider table.
    """
    config = settings("small", arg, encoder="modernbert", embedding_size=256)
    config.model.layers = 4
    config.model.modernbert.update(local_window=LOCAL_WINDOW, global_every=3, activation=activation)
    objective = make_objective(config, VOCABULARY)
    return objective, random_params(objective), config.model


@pytest.mark.parametrize("activation", ["gelu", "relu2"])
def test_modernbert_agrees_in_masked_language_modeling(activation):
    objective, params, model = modernbert("objective=mlm", activation)
    ours = run_ours(objective, params)
    model = build(objective, params, "encoder", "mlm_head", modernbert_config(model))
    theirs, bound = run_theirs(model, ours.masked.input_ids, mlm_labels(ours.masked))
    agree(ours.mlm, (theirs, bound))
    assert ours.loss == pytest.approx(theirs.loss, rel=0, abs=bound.loss)
    assert ours.metrics["mlm_loss"].value == pytest.approx(theirs.loss, rel=0, abs=bound.loss)


def test_modernbert_agrees_as_a_discriminator():
    """The head of theirs that is built like ours is that of token classification."""
    objective, params, model = modernbert("generator=unigram")
    model = build(objective, params, "encoder", "discriminator_head", modernbert_config(model, num_labels=2))
    states = jax.jit(lambda params: networks.encode(objective.model, params, batch()))(params)
    scores = networks.discriminator_logits(objective.model, params, states, batch().sequence_ids)
    agree((np.asarray(states), np.asarray(scores)), run_theirs(model, batch().input_ids))
