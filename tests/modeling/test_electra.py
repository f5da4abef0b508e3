import dataclasses
import functools
import math
import operator
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from electra_jax import train_config
from electra_jax.config import config_file
from electra_jax.modeling import config as model_config
from electra_jax.modeling import electra, layer_norm, subnetwork
from electra_jax.modeling.batch import Batch
from electra_jax.modeling.electra import Electra

CONFIGS = Path(__file__).parents[2] / "configs"
VOCABULARY, PADDED, LENGTH = 130, 256, 12
WIDTH, GENERATOR_WIDTH, EMBEDDING = 128, 64, 32
BATCH = Batch(
    np.asarray([[2, 9, 8, 7, 6, 3, 2, 50, 60, 70, 3, 0], [2, 11, 12, 13, 14, 15, 3, 21, 22, 23, 3, 0]]),
    np.asarray([[0] * 12, [0] * 7 + [1] * 4 + [0]]),
    np.asarray([[1] * 6 + [2] * 5 + [0], [1] * 11 + [0]]),
)
BATCH = jax.tree.map(lambda x: x.astype(np.int32), BATCH)
EVERY = np.tile(np.arange(LENGTH, dtype=np.int32), (2, 1))
HEADS = ("discriminator_head", "mlm_head", "copy_gate", "baseline")
every_encoder = pytest.mark.parametrize(
    "encoder",
    ["bert", "modernbert", pytest.param("deberta", marks=pytest.mark.slow)],  # its own: test_deberta.py
)


@functools.cache
def small(encoder: str = "bert", dtype: str = "float32", two_towers: bool = False, **changes) -> Electra:
    model = train_config.paper().model
    model.update(encoder=encoder, dtype=dtype, layers=2, width=WIDTH, ffn=64, heads=2, embedding_size=EMBEDDING)
    model.update(max_length=16, generator_width=GENERATOR_WIDTH / WIDTH)
    model.update(changes)
    return Electra(model_config.from_settings(model, VOCABULARY, HEADS, two_towers=two_towers))


def shapes(model: Electra):
    ids = jax.ShapeDtypeStruct((1, LENGTH), jnp.int32)
    return jax.eval_shape(model.init, jax.random.key(0), Batch(ids, ids, ids))["params"]


def random_params(model: Electra):
    """No two alike, none at 0 or 1."""
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda p: rng.normal(0.1, 0.3, p.shape).astype(np.float32), shapes(model))


def start(model: Electra):
    return model.init(jax.random.key(0), BATCH)["params"]


@functools.cache
def initial(encoder: str):
    return jax.device_get(jax.jit(lambda: start(small(encoder)))())


@functools.cache
def compiled(encoder: str, dtype: str = "float32"):
    """(generate, discriminate), jitted; each of (params, batch[, positions], dropout_key)."""
    model = small(encoder, dtype)

    def generate(params, batch, positions=EVERY, dropout_key=None):
        states = electra.generator_states(model, params, batch, dropout_key)
        return electra.generator_logits(model, params, electra.gather_positions(states, positions))

    def discriminate(params, batch, dropout_key=None):
        states = electra.encode(model, params, batch, dropout_key)
        return electra.discriminator_logits(model, params, states, batch.sequence_ids)

    return jax.jit(generate), jax.jit(discriminate)


def flat(params) -> dict[str, np.ndarray]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(params)
    return {jax.tree_util.keystr(path, simple=True, separator="."): value for path, value in leaves}


@pytest.mark.parametrize(
    ("size", "discriminator", "generator"),
    [("small", 13.55e6, 4.62e6), ("base", 109.5e6, 33.7e6), ("large", 335.1e6, 51.3e6)],
)
def test_parameter_counts_are_the_papers(size, discriminator, generator):
    model = config_file.load(CONFIGS / f"{size}.py").model
    config = model_config.from_settings(model, 30522, ("discriminator_head",))
    params = shapes(Electra(config))
    count = {name: sum(math.prod(p.shape) for p in jax.tree.leaves(part)) for name, part in params.items()}
    assert set(count) == {"embeddings", "encoder", "discriminator_head", "generator", "generator_head"}
    padding = config.padded_vocab_size - 30522
    shared = count["embeddings"] - padding * config.embedding_size
    assert shared + count["encoder"] + count["discriminator_head"] == pytest.approx(discriminator, rel=5e-4)
    head = count["generator_head"] - padding  # of its bias
    assert shared + count["generator"] + head == pytest.approx(generator, rel=1.5e-3)


def bound(encoder: str, name: str, shape: tuple[int, ...]) -> float:
    """The largest absolute value that a weight can start from."""
    scalar_head = "copy_gate" in name or "baseline" in name
    if "project" in name or scalar_head or ("classifier" in name and encoder != "modernbert"):
        return math.sqrt(6 / sum(shape))  # Glorot's uniform distribution
    if "classifier" in name:
        return 2 * shape[0] ** -0.5
    to_residual = encoder == "modernbert" and re.search("out.kernel|head.dense", name)
    return 2 * 0.02 / math.sqrt(2 * 2 if to_residual else 1)


@every_encoder
def test_parameters_start_as_they_should(encoder):
    for name, value in flat(initial(encoder)).items():
        if name.endswith("bias"):
            assert np.all(value == 0), name
        elif name.endswith("scale"):
            assert np.all(value == 1), name
        else:
            highest = bound(encoder, name, value.shape)
            assert 0.8 * highest < np.abs(value).max() <= highest * (1 + 1e-6), name


@every_encoder
def test_parameters_are_float32(encoder):
    assert {p.dtype for p in jax.tree.leaves(initial(encoder))} == {np.dtype(np.float32)}


@pytest.mark.parametrize(("encoder", "epsilon"), [("bert", 1e-12), ("modernbert", 1e-5), ("deberta", 1e-7)])
def test_every_layer_norm_adds_the_same_epsilon(encoder, epsilon):
    """Also where no float32 number can show it: 1e-12 is that of google-research/electra's layer norms."""
    found = {}

    def see(call, args, kwargs, context):
        if isinstance(context.module, layer_norm.LayerNorm):
            found["/".join(context.module.path)] = context.module.epsilon
        return call(*args, **kwargs)

    with nn.intercept_methods(see):
        names = {key.rpartition("/")[0] for key in subnetwork.flatten_params(shapes(small(encoder))) if "norm" in key}
    assert set(found) >= names
    assert set(found.values()) == {epsilon}


def with_bias(params, bias: np.ndarray):
    return dict(params, generator_head={**params["generator_head"], "bias": bias.astype(np.float32)})


@every_encoder
def test_padded_vocabulary_has_no_probability(encoder):
    logits = compiled(encoder)[0](with_bias(initial(encoder), np.linspace(0, 9, PADDED)), BATCH)
    assert logits.shape == (2, LENGTH, PADDED)
    probabilities = np.asarray(jax.nn.softmax(logits))
    assert np.all(probabilities[..., VOCABULARY:] == 0)
    assert np.all(probabilities[..., :VOCABULARY] > 0)


@every_encoder
def test_generator_decodes_with_the_word_table_and_a_bias(encoder):
    params = initial(encoder)
    plain = np.asarray(compiled(encoder)[0](params, BATCH))[..., :VOCABULARY]
    biased = with_bias(params, np.arange(PADDED))
    np.testing.assert_allclose(
        np.asarray(compiled(encoder)[0](biased, BATCH))[..., :VOCABULARY] - plain,
        np.broadcast_to(np.arange(VOCABULARY), plain.shape),
        atol=1e-4,
    )
    table = params["embeddings"]["word"].copy()
    table[100] *= 2  # token 100 is not in the input
    doubled = dict(params, embeddings={**params["embeddings"], "word": table})
    expected = plain.copy()
    expected[..., 100] *= 2
    logits = np.asarray(compiled(encoder)[0](doubled, BATCH))[..., :VOCABULARY]
    np.testing.assert_allclose(logits, expected, atol=1e-5)


@every_encoder
def test_both_networks_train_the_shared_embeddings_and_not_each_other(encoder):
    generate, discriminate = compiled(encoder)
    for network, own in (
        (lambda params: generate(params, BATCH)[..., 7:10].sum(), {"generator", "generator_head"}),
        (lambda params: discriminate(params, BATCH).sum(), {"encoder", "discriminator_head"}),
    ):
        grads = jax.device_get(jax.jit(jax.grad(network))(initial(encoder)))
        assert reached(grads) == own | {"embeddings"}
        word = np.any(np.asarray(grads["embeddings"]["word"]) != 0, axis=1)
        assert word[50]  # in the input, not among the outputs
        assert not word[100]  # in neither
        assert all(np.any(g != 0) for g in jax.tree.leaves(grads["embeddings"]))


def reached(grads) -> set[str]:
    return {part for part in grads if any(np.any(g != 0) for g in jax.tree.leaves(grads[part]))}


@every_encoder
def test_logits_at_some_positions_are_those_of_all_gathered(encoder):
    positions = np.asarray([[4, 0, 9], [1, 10, 2]], np.int32)
    generate = compiled(encoder)[0]
    gathered = np.take_along_axis(np.asarray(generate(initial(encoder), BATCH)), positions[..., None], axis=1)
    np.testing.assert_allclose(generate(initial(encoder), BATCH, positions), gathered, rtol=1e-5, atol=1e-5)


@every_encoder
def test_packed_sequences_are_as_if_alone(encoder):
    alone = jax.tree.map(np.zeros_like, BATCH)
    for here, packed in zip(alone, BATCH, strict=True):
        here[0, :5] = packed[0, 6:11]
    for network in compiled(encoder):
        packed, apart = (np.asarray(network(initial(encoder), batch))[0] for batch in (BATCH, alone))
        np.testing.assert_allclose(apart[:5], packed[6:11], rtol=1e-5, atol=1e-5)


def test_bert_tells_segments_and_positions_apart():
    """Of one token all over, the score is the same wherever nothing but its place and its segment differ."""
    batch = Batch(np.full((1, 4), 9), np.asarray([[0, 0, 1, 1]]), [[1] * 4])
    batch = Batch(*(np.asarray(value, np.int32) for value in batch))
    params = initial("bert")
    embeddings = dict(params["embeddings"])
    for changes, distinct in (({}, 4), ({"position": 0}, 2), ({"position": 0, "segment": 0}, 1)):
        embeddings |= {name: np.zeros_like(embeddings[name]) for name in changes}
        scores = np.asarray(compiled("bert")[1](dict(params, embeddings=embeddings), batch))
        assert len(np.unique(scores.round(6))) == distinct


@every_encoder
def test_dropout_is_on_where_it_has_a_key(encoder):
    key = jax.random.key(1, impl="unsafe_rbg")  # compiles faster than the default
    for network in compiled(encoder):
        run = functools.partial(network, initial(encoder), BATCH)
        keys = (None, key, key, jax.random.fold_in(key, 1))
        plain, first, again, second = (np.asarray(run(dropout_key=k)) for k in keys)
        np.testing.assert_array_equal(first, again)
        assert np.mean((plain != first)[..., :LENGTH]) > 0.9
        assert np.mean((first != second)[..., :LENGTH]) > 0.9


@every_encoder
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
    assert {p.dtype for p in jax.tree.leaves(shapes(small(dtype="bfloat16")))} == {np.dtype(np.float32)}


GENERATORS_OWN = {"none": {"generator_embeddings", "generator"}, "embeddings": {"generator"}, "all": set()}
GENERATORS_OWN["gdes"] = GENERATORS_OWN["none"]


def tied(tying: str, encoder: str = "bert", **changes) -> Electra:
    """With `all`, the networks are of equal size."""
    return small(encoder, layers=1, tying=tying, generator_width=1.0 if tying == "all" else 0.5, **changes)


@functools.cache
def forward(tying: str):
    """params -> (states, logits over the vocabulary) of both networks, jitted."""
    model = tied(tying)

    def run(params):
        generator, encoder = electra.generator_states(model, params, BATCH), electra.encode(model, params, BATCH)
        logits = electra.generator_logits(model, params, generator), electra.mlm_logits(model, params, encoder)
        by_name = {
            name: values[..., :VOCABULARY] for name, values in zip(("generator", "encoder"), logits, strict=True)
        }
        return {"generator": generator, "encoder": encoder}, by_name

    return jax.jit(run)


@every_encoder
@pytest.mark.parametrize("tying", GENERATORS_OWN)
def test_what_the_generator_shares_it_has_no_parameters_for(encoder, tying):
    params = shapes(tied(tying, encoder))
    assert set(params) == {"embeddings", "encoder", "generator_head", *HEADS} | GENERATORS_OWN[tying]
    tables = {"word", "position", "segment", "norm"} if encoder == "bert" else {"word"}
    assert all(set(params[name]) == tables for name in params if name.endswith("embeddings"))


def test_without_a_generator_there_is_an_encoder_alone():
    config = dataclasses.replace(small().config, generator=None, heads=("mlm_head",))
    assert set(shapes(Electra(config))) == {"embeddings", "encoder", "mlm_head"}


@pytest.mark.parametrize(("tying", "size"), [("none", 96), ("none", 32), ("gdes", 96), ("gdes", 32)])
def test_the_generators_own_tables_are_as_wide_as_the_encoders(tying, size):
    params = shapes(tied(tying, embedding_size=size))
    for name in ("embeddings", "generator_embeddings"):
        found = {table: value.shape for table, value in flat(params[name]).items()}
        tables = {"word": (PADDED, size), "position": (16, size), "segment": (2, size)}
        assert found == tables | {"norm.scale": (size,), "norm.bias": (size,)}
    assert params["generator_head"]["dense"]["kernel"].shape == (GENERATOR_WIDTH, size)
    assert params["mlm_head"]["dense"]["kernel"].shape == (WIDTH, size)


def test_modernberts_head_is_as_wide_as_its_network_and_then_mapped_to_the_table():
    head = shapes(small("modernbert"))["generator_head"]
    assert head["dense"]["kernel"].shape == (GENERATOR_WIDTH, GENERATOR_WIDTH)
    assert head["project"]["kernel"].shape == (GENERATOR_WIDTH, EMBEDDING)
    equal = shapes(small("modernbert", embedding_size=GENERATOR_WIDTH))["generator_head"]
    assert set(equal) == {"dense", "norm", "bias"}


def test_gdes_starts_as_shared_embeddings():
    model = tied("gdes")
    tables = jax.jit(lambda: operator.itemgetter("generator_embeddings", "embeddings")(start(model)))
    base, own = jax.device_get(tables())
    assert all(np.all(own[name] == 0) for name in ("word", "position", "segment"))
    assert 0.07 < np.ptp(base["word"]) <= 0.08
    rest = random_params(model)
    gdes = forward("gdes")({**rest, "generator_embeddings": base, "embeddings": own})
    del rest["generator_embeddings"]
    jax.tree.map(np.testing.assert_array_equal, gdes, forward("embeddings")({**rest, "embeddings": base}))


def test_gdes_adds_the_encoders_difference_to_the_generators_tables():
    params = random_params(tied("gdes"))
    base, own = params["generator_embeddings"], params["embeddings"]
    sums = {name: base[name] + own[name] for name in ("word", "position", "segment")}
    rest = {name: value for name, value in params.items() if name != "generator_embeddings"}
    states, logits = forward("gdes")(params)
    for network, embeddings in (("encoder", {**sums, "norm": own["norm"]}), ("generator", base)):
        expected_states, expected_logits = forward("embeddings")({**rest, "embeddings": embeddings})
        np.testing.assert_allclose(states[network], expected_states[network], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(logits[network], expected_logits[network], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tying", GENERATORS_OWN)
def test_what_the_predictions_of_each_network_depend_on(tying):
    params = random_params(tied(tying))
    run = forward(tying)
    _, before = jax.device_get(run(params))
    found: dict[str, set[str]] = {"generator": set(), "encoder": set()}
    for name in params:
        _, after = jax.device_get(run({**params, name: jax.tree.map(lambda p: p * np.float32(1.5), params[name])}))
        for network in found:
            found[network] |= {name} if np.any(before[network] != after[network]) else set()
    tables = "embeddings" if tying in ("embeddings", "all") else "generator_embeddings"
    assert found["generator"] == {tables, "encoder" if tying == "all" else "generator", "generator_head"}
    read = {"embeddings", "generator_embeddings"} if tying == "gdes" else {"embeddings"}
    assert found["encoder"] == read | {"encoder", "mlm_head"}


def test_gdes_keeps_the_encoders_gradient_from_the_generators_tables():
    encoder_sum = jax.jit(jax.grad(lambda params: forward("gdes")(params)[1]["encoder"].sum()))
    grads = jax.device_get(encoder_sum(random_params(tied("gdes"))))
    assert reached(grads) == {"embeddings", "encoder", "mlm_head"}
    assert all(np.any(g != 0) for g in jax.tree.leaves(grads["embeddings"]))


def test_tied_altogether_both_networks_read_alike_and_predict_by_their_own_heads():
    states, logits = jax.device_get(forward("all")(random_params(tied("all"))))
    np.testing.assert_allclose(states["generator"], states["encoder"], rtol=1e-5)
    assert np.abs(logits["generator"] - logits["encoder"]).min() > 0


@pytest.mark.parametrize(
    ("tying", "table", "changed"),
    [
        ("none", "embeddings", {"encoder"}),
        ("none", "generator_embeddings", {"generator"}),
        ("embeddings", "embeddings", {"encoder", "generator"}),
        ("all", "embeddings", {"encoder", "generator"}),
        ("gdes", "embeddings", {"encoder"}),
        ("gdes", "generator_embeddings", {"encoder", "generator"}),
    ],
)
def test_each_network_predicts_over_its_own_table(tying, table, changed):
    """Token 100 is not in the input: only its own logit can follow its row."""
    params = random_params(tied(tying))
    word = params[table]["word"].copy()
    word[100] += 1
    _, before = jax.device_get(forward(tying)(params))
    _, after = jax.device_get(forward(tying)({**params, table: {**params[table], "word": word}}))
    for network in before:
        columns = np.flatnonzero(np.any(before[network] != after[network], axis=(0, 1)))
        assert columns.tolist() == ([100] if network in changed else [])


@every_encoder
def test_two_towers_predict_a_token_from_all_others_of_its_sequence(encoder):
    """Of copies of one row each is changed at another position."""
    model = small(encoder, two_towers=True)
    params = random_params(model)
    assert set(params["generator"]) == {"left", "right"}
    width = GENERATOR_WIDTH if encoder == "modernbert" else EMBEDDING
    assert params["generator_head"]["dense"]["kernel"].shape == (2 * GENERATOR_WIDTH, width)
    batch = jax.tree.map(lambda x: np.tile(x[:1], (LENGTH + 1, 1)), BATCH)
    ids = batch.input_ids + 30 * np.eye(LENGTH + 1, LENGTH, dtype=np.int32)
    states = np.asarray(
        jax.jit(lambda ids: electra.generator_states(model, params, batch._replace(input_ids=ids)))(ids)
    )
    assert states.shape == (LENGTH + 1, LENGTH, 2 * GENERATOR_WIDTH)
    follows = np.any((states[:-1] != states[-1:]).reshape(LENGTH, LENGTH, 2, GENERATOR_WIDTH), axis=-1)
    same = np.equal.outer(BATCH.sequence_ids[0], BATCH.sequence_ids[0])
    np.testing.assert_array_equal(follows[..., 0], np.triu(same, 1))  # [changed, state]
    np.testing.assert_array_equal(follows[..., 1], np.tril(same, -1))
    left, right = np.split(states[-1], 2, axis=-1)
    assert np.flatnonzero(np.all(left == 0, axis=-1)).tolist() == [0, 6, 11]  # nothing is before them
    assert np.flatnonzero(np.all(right == 0, axis=-1)).tolist() == [5, 10, 11]  # nor after these


def test_copy_gate_and_baseline_are_one_dense_layer():
    model = small()
    params = random_params(model)
    for head, width, apply in (
        ("copy_gate", WIDTH, electra.copy_logits),
        ("baseline", GENERATOR_WIDTH, electra.baseline_logits),
    ):
        states = np.random.default_rng(1).standard_normal((2, 3, width)).astype(np.float32)
        dense = params[head]["dense"]
        expected = (states @ dense["kernel"])[..., 0] + dense["bias"][0]
        scores = apply(model, params, states)
        np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-5)
