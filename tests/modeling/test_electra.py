import dataclasses
import functools
import math
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_models
from flax import linen as nn

from electra_jax import train_config
from electra_jax.config import config_file
from electra_jax.modeling import electra, layer_norm, subnetwork
from electra_jax.modeling.batch import Batch
from electra_jax.modeling.electra import Electra

CONFIGS = Path(__file__).parents[2] / "configs"
VOCABULARY, PADDED, LENGTH = 130, 256, 12
WIDTH, GENERATOR_WIDTH, EMBEDDING = 128, 64, 32
STDDEV = 0.03  # of initial weights; not the default
BATCH = Batch(
    np.asarray([[2, 9, 8, 7, 6, 3, 2, 50, 60, 70, 3, 0], [2, 11, 12, 13, 14, 15, 3, 21, 22, 23, 3, 0]]),
    np.asarray([[0] * 12, [0] * 7 + [1] * 4 + [0]]),
    np.asarray([[1] * 6 + [2] * 5 + [0], [1] * 11 + [0]]),
)
BATCH = jax.tree.map(lambda x: x.astype(np.int32), BATCH)
HEADS = ("discriminator_head", "mlm_head", "copy_gate", "baseline")
every_encoder = pytest.mark.parametrize(
    "encoder",
    ["bert", "modernbert", pytest.param("deberta", marks=pytest.mark.slow)],  # its own: test_deberta.py
)


@functools.cache
def small(encoder: str = "bert", dtype: str = "float32", two_towers: bool = False, **changes) -> Electra:
    model = train_config.paper().model
    model.update(encoder=encoder, dtype=dtype, layers=2, width=WIDTH, ffn=64, heads=2, embedding_size=EMBEDDING)
    model.update(max_length=16, generator_width=GENERATOR_WIDTH / WIDTH, init_stddev=STDDEV)
    model.update(changes)
    return Electra(tiny_models.shape(model, VOCABULARY, HEADS, two_towers=two_towers))


def shapes(model: Electra):
    return subnetwork.param_shapes(model.config)


def random_params(model: Electra):
    """No two alike, none at 0 or 1."""
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda p: rng.normal(0.1, 0.3, p.shape).astype(np.float32), shapes(model))


@functools.cache
def initial(encoder: str):
    """As parameters start, but drawn faster."""
    rng = np.random.default_rng(0)

    def draw(path, p):
        if path[-1].key in ("scale", "bias"):
            return np.full(p.shape, path[-1].key == "scale", np.float32)
        return rng.normal(0, STDDEV, p.shape).astype(np.float32)

    return jax.tree_util.tree_map_with_path(draw, shapes(small(encoder)))


@functools.cache
def compiled(encoder: str, dtype: str = "float32"):
    """(params, batch, dropout_key) -> what the generator and the discriminator say, jitted."""
    model = small(encoder, dtype)

    def run(params, batch, dropout_key=None):
        generator = electra.generator_states(model, params, batch, dropout_key)
        states = electra.encode(model, params, batch, dropout_key)
        scores = electra.discriminator_logits(model, params, states, batch.sequence_ids)
        return electra.generator_logits(model, params, generator), scores

    return jax.jit(run)


def generate(encoder: str, params) -> np.ndarray:
    """Logits over the vocabulary."""
    return np.asarray(compiled(encoder)(params, BATCH)[0])[..., :VOCABULARY]


def flat(params) -> dict[str, np.ndarray]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(params)
    return {jax.tree_util.keystr(path, simple=True, separator="."): value for path, value in leaves}


@pytest.mark.parametrize(
    ("size", "discriminator", "generator"),
    [("small", 13.55e6, 4.62e6), ("base", 109.5e6, 33.7e6), ("large", 335.1e6, 51.3e6)],
)
def test_parameter_counts_are_the_papers(size, discriminator, generator):
    model = config_file.load(CONFIGS / f"{size}.py").model
    config = tiny_models.shape(model, 30522, ("discriminator_head",))
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
    if "project" in name or "copy_gate" in name or ("classifier" in name and encoder != "modernbert"):
        return math.sqrt(6 / sum(shape))  # Glorot's uniform distribution
    if "classifier" in name:
        return 2 * shape[0] ** -0.5
    to_residual = encoder == "modernbert" and re.search("out.kernel|head.dense", name)
    return 2 * STDDEV / math.sqrt(2 * 2 if to_residual else 1)


@every_encoder
def test_parameters_start_as_they_should(encoder):
    """Those of an encoder and its heads; a generator is made of the same modules."""
    heads = ("discriminator_head", "mlm_head", "copy_gate")
    model = Electra(dataclasses.replace(small(encoder).config, generator=None, heads=heads))
    for name, value in flat(jax.jit(model.init)(jax.random.key(0), BATCH)["params"]).items():
        if name.endswith("bias"):
            assert np.all(value == 0), name
        elif name.endswith("scale"):
            assert np.all(value == 1), name
        else:
            highest = bound(encoder, name, value.shape)
            assert 0.8 * highest < np.abs(value).max() <= highest * (1 + 1e-6), name


@pytest.mark.parametrize(("encoder", "epsilon"), [("bert", 1e-12), ("modernbert", 1e-5), ("deberta", 1e-7)])
def test_every_layer_norm_adds_the_same_epsilon(encoder, epsilon):
    """Also where no float32 number can show it: 1e-12 is that of google-research/electra's layer norms."""
    found = {}

    def see(call, args, kwargs, context):
        if isinstance(context.module, layer_norm.LayerNorm):
            found["/".join(context.module.path)] = context.module.epsilon
        return call(*args, **kwargs)

    with nn.intercept_methods(see):
        params = jax.eval_shape(small(encoder).init, jax.random.key(0), BATCH)["params"]
    assert set(found) >= {key.rpartition("/")[0] for key in subnetwork.flatten_params(params) if "norm" in key}
    assert set(found.values()) == {epsilon}


def with_bias(params, bias: np.ndarray):
    return dict(params, generator_head={**params["generator_head"], "bias": bias.astype(np.float32)})


def test_padded_vocabulary_has_no_probability():
    logits, _ = compiled("bert")(with_bias(initial("bert"), np.linspace(0, 9, PADDED)), BATCH)
    assert logits.shape == (2, LENGTH, PADDED)
    probabilities = np.asarray(jax.nn.softmax(logits))
    assert np.all(probabilities[..., VOCABULARY:] == 0)
    assert np.all(probabilities[..., :VOCABULARY] > 0)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("bfloat16", 2.0**-8)])
def test_gradients_of_token_products_are_rounded_once(dtype, tolerance):
    rng = np.random.default_rng(0)
    x, table, weights = (rng.normal(size=shape).astype("float32") for shape in ((2, 3, 4), (5, 4), (2, 3, 5)))
    x = x.astype(dtype)

    def loss(x, table, products):
        return jnp.sum(products(x, table) * weights)

    def exact(x, table):
        return jnp.einsum("bme,ve->bmv", x.astype(jnp.float32), table.astype(dtype).astype(jnp.float32))

    found, expected = (jax.grad(loss, (0, 1))(x, table, products) for products in (electra.token_products, exact))
    for mine, theirs, dtypes in zip(found, expected, (dtype, "float32"), strict=True):
        assert mine.dtype == dtypes
        theirs = np.asarray(theirs, np.float32)
        np.testing.assert_allclose(mine.astype("float32"), theirs, atol=tolerance * np.abs(theirs).max())
    program = jax.make_jaxpr(jax.grad(lambda *both: loss(*both, electra.token_products), (0, 1)))(x, table)
    products = [equation.invars for equation in program.eqns if equation.primitive.name == "dot_general"]
    assert [[str(each.aval.dtype) for each in pair] for pair in products] == [[dtype, dtype]] * 3


def test_token_products_have_a_hessian():
    x, table = jnp.ones((1, 2, 3)), jnp.arange(12, dtype=jnp.float32).reshape(4, 3) / 8

    def loss(x, products):
        return jnp.sum(jnp.exp(products(x, table)))

    found = jax.hessian(lambda x: loss(x, electra.token_products))(x)
    expected = jax.hessian(lambda x: loss(x, lambda x, table: x @ table.T))(x)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@every_encoder
def test_generator_decodes_with_the_word_table_and_a_bias(encoder):
    params = initial(encoder)
    plain = generate(encoder, params)
    np.testing.assert_allclose(
        generate(encoder, with_bias(params, np.arange(PADDED))) - plain,
        np.broadcast_to(np.arange(VOCABULARY), plain.shape),
        atol=1e-4,
    )
    table = params["embeddings"]["word"].copy()
    table[100] *= 2  # token 100 is not in the input
    doubled = dict(params, embeddings={**params["embeddings"], "word": table})
    expected = plain.copy()
    expected[..., 100] *= 2
    np.testing.assert_allclose(generate(encoder, doubled), expected, atol=1e-5)


@every_encoder
def test_packed_sequences_are_as_if_alone(encoder):
    alone = jax.tree.map(np.zeros_like, BATCH)
    for here, packed in zip(alone, BATCH, strict=True):
        here[0, :5] = packed[0, 6:11]
    run = functools.partial(compiled(encoder), initial(encoder))
    for packed, apart in zip(run(BATCH), run(alone), strict=True):
        np.testing.assert_allclose(apart[0, :5], packed[0, 6:11], rtol=1e-5, atol=1e-5)


def test_bert_tells_segments_and_positions_apart():
    """Of one token all over, the score is the same wherever nothing but its place and its segment differ."""
    rows = (np.full(LENGTH, 9), np.repeat([0, 1, 0], [2, 2, 8]), np.repeat([1, 0], [4, 8]))
    batch = Batch(*(np.tile(row.astype(np.int32), (2, 1)) for row in rows))  # of which four are read
    params = initial("bert")
    embeddings = dict(params["embeddings"])
    for changes, distinct in (({}, 4), ({"position": 0}, 2), ({"position": 0, "segment": 0}, 1)):
        embeddings |= {name: np.zeros_like(embeddings[name]) for name in changes}
        _, scores = compiled("bert")(dict(params, embeddings=embeddings), batch)
        assert len(np.unique(np.asarray(scores)[0, :4].round(6))) == distinct


def test_dropout_is_on_where_it_has_a_key():
    """Where the encoders have it: their own tests."""
    key = jax.random.key(1, impl="unsafe_rbg")  # compiles faster than the default
    keys = (None, key, key, jax.random.fold_in(key, 1))
    runs = (compiled("bert")(initial("bert"), BATCH, k) for k in keys)
    for plain, first, again, second in zip(*jax.device_get([*runs]), strict=True):
        np.testing.assert_array_equal(first, again)
        assert np.mean((plain != first)[..., :LENGTH]) > 0.9
        assert np.mean((first != second)[..., :LENGTH]) > 0.9


@every_encoder
def test_bfloat16_multiplies_in_bfloat16_and_gives_float32(encoder):
    half = compiled(encoder, "bfloat16")
    text = half.lower(initial(encoder), BATCH, dropout_key=jax.random.key(0)).as_text()
    operands = re.findall(r"stablehlo\.dot_general .* : \((.*)\) ->", text)
    assert len(operands) > 8
    assert all(operand.count("bf16>") == 2 for operand in operands)
    for expected, scores in zip(*(run(initial(encoder), BATCH) for run in (compiled(encoder), half)), strict=True):
        assert scores.dtype == jnp.float32
        np.testing.assert_allclose(scores, expected, rtol=0.02, atol=0.03)
        assert np.any(np.asarray(scores) != np.asarray(expected))


def test_parameters_start_in_float32_for_a_bfloat16_model():
    assert {p.dtype for p in jax.tree.leaves(shapes(small(dtype="bfloat16")))} == {np.dtype(np.float32)}


# Which parameters each has: tests/objectives/test_gradients.py.
TYINGS = ("none", "embeddings", "all", "gdes")


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


@pytest.mark.parametrize("tying", ["none", "gdes"])
def test_the_generators_own_tables_are_as_wide_as_the_encoders(tying):
    params, size = shapes(tied(tying)), EMBEDDING
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
    both = ("generator_embeddings", "embeddings")
    begin = functools.partial(
        model.init, method=lambda model, batch: [getattr(model, name)(batch, False) for name in both]
    )
    tables = jax.device_get(jax.jit(begin)(jax.random.key(0), BATCH)["params"])
    base, own = (tables[name] for name in both)
    assert all(np.all(own[name] == 0) for name in ("word", "position", "segment"))
    assert 3.5 * STDDEV < np.ptp(base["word"]) <= 4 * STDDEV
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


@pytest.mark.parametrize("tying", TYINGS)
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


def test_two_towers_predict_a_token_from_all_others_of_its_sequence():
    """Of copies of one row each is changed at another position."""
    model = small(two_towers=True)
    params = random_params(model)
    assert set(params["generator"]) == {"left", "right"}
    assert params["generator_head"]["dense"]["kernel"].shape == (2 * GENERATOR_WIDTH, EMBEDDING)
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
