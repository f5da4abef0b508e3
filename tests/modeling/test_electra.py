import functools
import math
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from electra_jax import config as config_lib
from electra_jax.modeling import config as model_config
from electra_jax.modeling.electra import Electra, discriminator_logits, generator_logits

CONFIGS = Path(__file__).parents[2] / "configs"
VOCABULARY, PADDED, LENGTH = 130, 256, 12
BATCH = {
    "input_ids": np.asarray([[2, 9, 8, 7, 6, 3, 2, 50, 60, 70, 3, 0], [2, 11, 12, 13, 14, 15, 3, 21, 22, 23, 3, 0]]),
    "token_type_ids": np.asarray([[0] * 12, [0] * 7 + [1] * 4 + [0]]),
    "sequence_ids": np.asarray([[1] * 6 + [2] * 5 + [0], [1] * 11 + [0]]),
}
BATCH = {name: value.astype(np.int32) for name, value in BATCH.items()}
EVERY = np.tile(np.arange(LENGTH, dtype=np.int32), (2, 1))
both_encoders = pytest.mark.parametrize("encoder", ["bert", "modernbert"])


def small(encoder: str, dtype: str = "float32") -> Electra:
    model = config_lib.paper().model
    model.update(encoder=encoder, dtype=dtype, layers=2, width=128, ffn=64, heads=2, embedding_size=32, max_length=16)
    model.update(generator_width=0.5)
    return Electra(model_config.from_settings(model, VOCABULARY))


@functools.cache
def initial(encoder: str):
    batch = (BATCH["input_ids"], BATCH["token_type_ids"], BATCH["sequence_ids"])
    return jax.jit(small(encoder).init)(jax.random.key(0), *batch)["params"]


@functools.cache
def compiled(encoder: str, dtype: str = "float32"):
    """(generate, discriminate), jitted; each of (params, batch[, positions], dropout_key)."""
    model = small(encoder, dtype)

    def generate(params, batch, positions=EVERY, dropout_key=None):
        return generator_logits(model, params, batch, batch["input_ids"], positions, dropout_key)

    def discriminate(params, batch, dropout_key=None):
        return discriminator_logits(model, params, batch, batch["input_ids"], dropout_key)

    return jax.jit(generate), jax.jit(discriminate)


def flat(params) -> dict[str, np.ndarray]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(params)
    return {jax.tree_util.keystr(path, simple=True, separator="."): value for path, value in leaves}


@pytest.mark.parametrize(
    ("size", "discriminator", "generator"),
    [("small", 13.55e6, 4.62e6), ("base", 109.5e6, 33.7e6), ("large", 335.1e6, 51.3e6)],
)
def test_parameter_counts_are_the_papers(size, discriminator, generator):
    config = model_config.from_settings(config_lib.load(CONFIGS / f"{size}.py").model, 30522)
    ids = jax.ShapeDtypeStruct((1, 8), jnp.int32)
    params = jax.eval_shape(Electra(config).init, jax.random.key(0), ids, ids, ids)["params"]
    count = {name: sum(math.prod(p.shape) for p in jax.tree.leaves(part)) for name, part in params.items()}
    padding = config.padded_vocab_size - 30522
    shared = count["embeddings"] - padding * config.embedding_size
    assert shared + count["discriminator"] + count["discriminator_head"] == pytest.approx(discriminator, rel=5e-4)
    bias = count["generator_bias"] - padding
    assert shared + count["generator"] + count["generator_head"] + bias == pytest.approx(generator, rel=1.5e-3)


def bound(encoder: str, name: str, shape: tuple[int, ...]) -> float:
    """The largest absolute value that a weight can start from."""
    if "project" in name or ("classifier" in name and encoder == "bert"):
        return math.sqrt(6 / sum(shape))  # Glorot's uniform distribution
    if "classifier" in name:
        return 2 * shape[0] ** -0.5
    to_residual = encoder == "modernbert" and re.search("out.kernel|head.dense", name)
    return 2 * 0.02 / math.sqrt(2 * 2 if to_residual else 1)


@both_encoders
def test_parameters_start_as_they_should(encoder):
    for name, value in flat(initial(encoder)).items():
        if name.endswith("bias"):
            assert np.all(value == 0), name
        elif name.endswith("scale"):
            assert np.all(value == 1), name
        else:
            highest = bound(encoder, name, value.shape)
            assert 0.8 * highest < np.abs(value).max() <= highest * (1 + 1e-6), name


@both_encoders
def test_parameters_are_float32(encoder):
    assert {p.dtype for p in jax.tree.leaves(initial(encoder))} == {np.dtype(np.float32)}


@both_encoders
def test_padded_vocabulary_has_no_probability(encoder):
    params = dict(initial(encoder), generator_bias=np.linspace(0, 9, PADDED, dtype=np.float32))
    logits = compiled(encoder)[0](params, BATCH)
    assert logits.shape == (2, LENGTH, PADDED)
    probabilities = np.asarray(jax.nn.softmax(logits))
    assert np.all(probabilities[..., VOCABULARY:] == 0)
    assert np.all(probabilities[..., :VOCABULARY] > 0)


@both_encoders
def test_generator_decodes_with_the_word_table_and_a_bias(encoder):
    params = initial(encoder)
    plain = compiled(encoder)[0](params, BATCH)[..., :VOCABULARY]
    biased = dict(params, generator_bias=np.arange(PADDED, dtype=np.float32))
    np.testing.assert_allclose(
        compiled(encoder)[0](biased, BATCH)[..., :VOCABULARY] - plain,
        np.broadcast_to(np.arange(VOCABULARY), plain.shape),
        atol=1e-4,
    )
    table = params["embeddings"]["word"].at[100].multiply(2.0)  # token 100 is not in the input
    doubled = dict(params, embeddings={**params["embeddings"], "word": table})
    expected = np.asarray(plain).copy()
    expected[..., 100] *= 2
    np.testing.assert_allclose(compiled(encoder)[0](doubled, BATCH)[..., :VOCABULARY], expected, atol=1e-5)


@both_encoders
def test_both_networks_train_the_shared_embeddings_and_not_each_other(encoder):
    generate, discriminate = compiled(encoder)
    for network, own in (
        (lambda params: generate(params, BATCH)[..., 7:10].sum(), {"generator", "generator_head", "generator_bias"}),
        (lambda params: discriminate(params, BATCH).sum(), {"discriminator", "discriminator_head"}),
    ):
        grads = jax.jit(jax.grad(network))(initial(encoder))
        reached = {part for part in grads if any(np.any(g != 0) for g in jax.tree.leaves(grads[part]))}
        assert reached == own | {"embeddings"}
        word = np.any(np.asarray(grads["embeddings"]["word"]) != 0, axis=1)
        assert word[50]  # in the input, not among the outputs
        assert not word[100]  # in neither
        assert all(np.any(g != 0) for g in jax.tree.leaves(grads["embeddings"]))


@both_encoders
def test_logits_at_some_positions_are_those_of_all_gathered(encoder):
    positions = np.asarray([[4, 0, 9], [1, 10, 2]], np.int32)
    generate = compiled(encoder)[0]
    gathered = np.take_along_axis(np.asarray(generate(initial(encoder), BATCH)), positions[..., None], axis=1)
    np.testing.assert_allclose(generate(initial(encoder), BATCH, positions), gathered, rtol=1e-5, atol=1e-5)


@both_encoders
def test_packed_sequences_are_as_if_alone(encoder):
    alone = {name: np.zeros_like(value) for name, value in BATCH.items()}
    for name, value in BATCH.items():
        alone[name][0, :5] = value[0, 6:11]
    for network in compiled(encoder):
        packed = network(initial(encoder), BATCH)[0, 6:11]
        np.testing.assert_allclose(network(initial(encoder), alone)[0, :5], packed, rtol=1e-5, atol=1e-5)


def test_bert_tells_segments_and_positions_apart():
    """Of one token all over, the score is the same wherever nothing but its place and its segment differ."""
    batch = {"input_ids": np.full((1, 4), 9), "token_type_ids": np.asarray([[0, 0, 1, 1]]), "sequence_ids": [[1] * 4]}
    batch = {name: np.asarray(value, np.int32) for name, value in batch.items()}
    params = initial("bert")
    embeddings = dict(params["embeddings"])
    for changes, distinct in (({}, 4), ({"position": 0}, 2), ({"position": 0, "segment": 0}, 1)):
        embeddings |= {name: np.zeros_like(embeddings[name]) for name in changes}
        scores = np.asarray(compiled("bert")[1](dict(params, embeddings=embeddings), batch))
        assert len(np.unique(scores.round(6))) == distinct


@both_encoders
def test_dropout_is_on_where_it_has_a_key(encoder):
    key = jax.random.key(1, impl="unsafe_rbg")  # compiles faster than the default
    for network in compiled(encoder):
        run = functools.partial(network, initial(encoder), BATCH)
        plain, first, again, second = (run(dropout_key=k) for k in (None, key, key, jax.random.fold_in(key, 1)))
        np.testing.assert_array_equal(first, again)
        assert np.mean(np.asarray(plain != first)[..., :LENGTH]) > 0.9
        assert np.mean(np.asarray(first != second)[..., :LENGTH]) > 0.9


@both_encoders
def test_bfloat16_multiplies_in_bfloat16_and_gives_float32(encoder):
    for full, half in zip(compiled(encoder), compiled(encoder, "bfloat16"), strict=True):
        text = half.lower(initial(encoder), BATCH, dropout_key=jax.random.key(0)).as_text()
        operands = re.findall(r"stablehlo\.dot_general .* : \((.*)\) ->", text)
        assert len(operands) > 4
        assert all(operand.count("bf16>") == 2 for operand in operands)
        expected, scores = full(initial(encoder), BATCH), half(initial(encoder), BATCH)
        assert scores.dtype == jnp.float32
        np.testing.assert_allclose(scores, expected, rtol=0.02, atol=0.03)
        assert np.any(np.asarray(scores) != np.asarray(expected))


def test_parameters_start_in_float32_for_a_bfloat16_model():
    ids = jax.ShapeDtypeStruct((1, 8), jnp.int32)
    params = jax.eval_shape(small("bert", "bfloat16").init, jax.random.key(0), ids, ids, ids)
    assert {p.dtype for p in jax.tree.leaves(params)} == {np.dtype(np.float32)}
