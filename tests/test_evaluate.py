import dataclasses
import functools
import math

import jax
import numpy as np
import pytest
from cli_runs import make_objective

from electra_jax import evaluate, train_config
from electra_jax.data.batches import HeldoutBatch
from electra_jax.data.tokenizer import CLS, OWN, SEP, UNK
from electra_jax.modeling.batch import Batch
from electra_jax.objectives import electra, registry
from electra_jax.objectives.segments import Phase, make_segments
from electra_jax.objectives.spec import Objective

VOCABULARY, PADDED, ROWS, LENGTH = 60, 128, 4, 40


def objective_of(name: str = "electra") -> Objective:
    config = train_config.paper()
    config.model.update(layers=1, width=32, ffn=32, heads=2, embedding_size=16, max_length=LENGTH, dtype="float32")
    train_config.choose_objective(config, name)
    return make_objective(config, VOCABULARY)


OBJECTIVE = objective_of()
STEP = np.int32(0)
SOURCES = ("en", "de", "fy")  # of the second there is no held-out example


def make_batch(ids: np.ndarray, sources=None) -> HeldoutBatch:
    ids = ids.astype(np.int32)
    sources = np.zeros(len(ids)) if sources is None else np.asarray(sources)
    return HeldoutBatch(Batch(ids, np.zeros_like(ids), (ids != 0).astype(np.int32)), sources.astype(np.int32))


@functools.cache
def batches():
    ids = np.random.default_rng(0).integers(5, VOCABULARY, (2, ROWS, LENGTH))
    ids[:, :, 0], ids[:, :, -1] = CLS, SEP
    return [make_batch(part, sources) for part, sources in zip(ids, ([0, 2, 2, 0], [2, 0, 0, 0]), strict=True)]


@functools.cache
def parameters():
    """Far enough from the initial ones for the networks to tell inputs apart."""
    params = jax.device_get(jax.jit(OBJECTIVE.model.init)(jax.random.key(0), batches()[0].batch)["params"])
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda p: p + 0.3 * rng.standard_normal(p.shape).astype(np.float32), params)


@jax.jit
def measure(params, batch, key, unigram):
    """Of an objective whose text has these log-frequencies, with the metrics of each of three sources."""
    objective = dataclasses.replace(OBJECTIVE, unigram=unigram)
    return evaluate.make_eval_step(objective, objective.stages[0], len(SOURCES))(params, STEP, batch, key)


def evaluator(held_out, seed: int = 0, sources=()) -> evaluate.Evaluator:
    """An evaluator that uses the program of `measure`."""

    def jit(eval_step):
        del eval_step
        return lambda params, step, batch, key: measure(params, batch, key, OBJECTIVE.unigram)

    segments = make_segments(OBJECTIVE, [Phase(OBJECTIVE.steps, 8, 4, OBJECTIVE.settings, 1e-3)])
    return evaluate.Evaluator(segments, held_out, seed, jit=jit, sources=sources)


@pytest.mark.parametrize(
    ("counts", "nats"),
    [([1, 1], math.log(2)), ([0, 4], 0), ([2, 1, 1, 0], 1.5 * math.log(2)), ([5] * 8, 3 * math.log(2))],
)
def test_entropy_of_counts(counts, nats):
    assert evaluate.entropy(np.asarray(counts)) == pytest.approx(nats)


@pytest.mark.parametrize(("fraction", "nats"), [(0, 0), (1, 0), (0.5, math.log(2)), (0.13, 19.3 / 50)])
def test_entropy_of_a_constant_prediction(fraction, nats):
    assert evaluate.constant_entropy(fraction) == pytest.approx(nats, abs=1e-3)


def test_two_evaluations_of_the_same_parameters_are_equal():
    measure_all = evaluator(batches())
    first = measure_all(parameters(), 0)
    assert first == measure_all(parameters(), 0)
    assert first != measure_all(jax.tree.map(lambda p: np.float32(1.5) * p, parameters()), 0)
    assert first != evaluator(batches(), seed=1)(parameters(), 0)


def test_all_batches_count():
    result = evaluator(iter(batches()))(parameters(), 0)
    assert result["tokens"] == 2 * ROWS * LENGTH


def test_batches_have_keys_of_their_own():
    once = evaluator(batches()[:1])(parameters(), 0)
    twice = evaluator(batches()[:1] * 2)(parameters(), 0)
    assert once["mlm_loss"] != pytest.approx(twice["mlm_loss"], rel=1e-4)


def test_yardsticks_are_those_of_the_text_and_of_its_fakes():
    """Ten tokens 7, five [UNK], five 9; the other special ones are not predicted, and do not count."""
    ids = np.tile([CLS, *[7] * 10, *[UNK] * 5, *[9] * 5, SEP, *[0] * 18], (ROWS, 1))
    result = evaluator([make_batch(ids)])(parameters(), 0)
    assert result["unigram_entropy"] == pytest.approx(1.5 * math.log(2))
    share = result["replaced_fraction"]
    assert 0 < share < 1
    expected = -share * math.log(share) - (1 - share) * math.log(1 - share)
    assert result["constant_entropy"] == pytest.approx(expected)


def test_padding_in_the_last_batch_changes_nothing():
    last = batches()[1]
    padded = HeldoutBatch(
        jax.tree.map(lambda x: np.pad(x, ((0, 3), (0, 0))), last.batch), np.append(last.sources, [-1, -1, -1])
    )
    plain = evaluator(batches(), sources=SOURCES)(parameters(), 0)
    filled = evaluator([batches()[0], padded], sources=SOURCES)(parameters(), 0)
    assert filled == pytest.approx(plain, rel=1e-5)


def test_a_mixture_has_the_metrics_of_each_source_besides_the_same_whole():
    """Means over all text are means over sources weighted by their positions; each source has 5 or 3 of 8 rows."""
    plain = evaluator(batches())(parameters(), 0)
    mixed = evaluator(batches(), sources=SOURCES)(parameters(), 0)
    assert {name: value for name, value in mixed.items() if "/" not in name} == plain
    assert {name for name in mixed if name.endswith("/en")} == {f"{name}/en" for name in plain if name != "tokens"}
    assert {name.partition("/")[2] for name in mixed} == {"", "en", "fy"}
    assert mixed["mlm_loss/en"] != mixed["mlm_loss/fy"]
    for name in ("mlm_loss", "mlm_accuracy", "disc_loss", "disc_accuracy", "replaced_fraction"):
        assert (5 * mixed[f"{name}/en"] + 3 * mixed[f"{name}/fy"]) / 8 == pytest.approx(plain[name], rel=1e-5)
    ids = np.concatenate([heldout.batch.input_ids for heldout in batches()])
    rows = [0, 3, 5, 6, 7]
    counts = np.bincount(ids[rows, 1:-1].ravel())
    assert mixed["unigram_entropy/en"] == pytest.approx(evaluate.entropy(counts))
    assert mixed["constant_entropy/en"] == pytest.approx(evaluate.constant_entropy(mixed["replaced_fraction/en"]))


@pytest.mark.slow  # it compiles another program
def test_the_whole_of_a_mixture_has_the_bits_that_it_has_alone():
    alone = jax.jit(evaluate.make_eval_step(OBJECTIVE, OBJECTIVE.stages[0]))
    mixed = jax.jit(evaluate.make_eval_step(OBJECTIVE, OBJECTIVE.stages[0], len(SOURCES)))
    expected, found = (step(parameters(), STEP, batches()[0], jax.random.key(0)) for step in (alone, mixed))
    assert expected.by_source == {}
    jax.tree.map(np.testing.assert_array_equal, found.whole, expected.whole)


def test_areas_of_a_source_are_those_of_its_rows():
    """With rows of one source alone, the rest padding, the whole has the metrics of that source."""
    (batch, _), en = batches()[0], [0, 3]
    kept = np.isin(np.arange(ROWS), en)
    alone = HeldoutBatch(batch._replace(sequence_ids=batch.sequence_ids * kept[:, None]), np.where(kept, 0, -1))
    of_source = measure(parameters(), batches()[0], jax.random.key(0), OBJECTIVE.unigram).by_source
    of_whole = measure(parameters(), alone, jax.random.key(0), OBJECTIVE.unigram).whole
    np.testing.assert_array_equal(of_source["disc_auc"].histogram[0].sum(), 2 * LENGTH)
    for name in ("disc_auc", "unigram_auc"):
        np.testing.assert_array_equal(of_source[name].histogram[0], of_whole[name].histogram)
        assert not np.any(of_source[name].histogram[1])


def test_every_chosen_position_gets_a_unigram_fake():
    """Text of nothing but 7s: drawn as 7s the fakes change nothing, as 8s they change 6 of 40 positions, not 85% of
    them."""
    batch = make_batch(np.full((ROWS, LENGTH), 7))
    for token, replaced in ((7, 0), (8, 6 * ROWS)):
        logits = electra.log_frequencies(np.eye(VOCABULARY)[token], PADDED, OWN)
        histogram = measure(parameters(), batch, jax.random.key(0), logits).whole["unigram_auc"].histogram
        np.testing.assert_array_equal(np.asarray(histogram).sum(axis=1), [ROWS * LENGTH - replaced, replaced])


@pytest.mark.parametrize(("name", "detects"), [("mlm", False), ("replace_mlm", False), ("electric", True)])
def test_unigram_fakes_are_shown_to_encoders_that_tell_fakes(name, detects):
    objective = objective_of(name)
    shapes = jax.eval_shape(objective.model.init, jax.random.key(0), batches()[0].batch)["params"]
    measured = jax.eval_shape(
        evaluate.make_eval_step(objective, objective.stages[0]), shapes, STEP, batches()[0], jax.random.key(0)
    )
    assert ("unigram_auc" in measured.whole) == detects


def test_unigram_fakes_follow_the_key_and_not_the_generator():
    generator = {name: jax.tree.map(lambda p: -2 * p, parameters()[name]) for name in parameters() if "gen" in name}

    def histograms(params, seed=0):
        measured = measure(params, batches()[0], jax.random.key(seed), OBJECTIVE.unigram).whole
        return [np.asarray(measured[name].histogram) for name in ("unigram_auc", "disc_auc")]

    unigram, own = histograms(parameters(), STEP)
    unigram_of_another, own_of_another = histograms({**parameters(), **generator})
    np.testing.assert_array_equal(unigram, unigram_of_another)
    assert np.any(own != own_of_another)
    assert np.any(unigram != histograms(parameters(), seed=1)[0])


def test_own_and_unigram_fakes_have_keys_of_their_own(monkeypatch):
    keys, draw = [], Objective.draw
    monkeypatch.setattr(Objective, "draw", lambda self, key, *rest: keys.append(key) or draw(self, key, *rest))
    eval_step = evaluate.make_eval_step(OBJECTIVE, OBJECTIVE.stages[0])

    @jax.jit  # which drops the evaluation, so that only the keys are compiled
    def keys_of(params, key):
        eval_step(params, STEP, batches()[0], key)
        return [jax.random.key_data(each) for each in keys]

    own, unigram = keys_of(parameters(), jax.random.key(0))
    assert np.any(own != unigram)


@pytest.mark.parametrize(
    ("heldout", "better"),
    [
        ({}, False),
        ({"mlm_accuracy": 0.5}, False),
        ({"mlm_loss": 4.0, "unigram_entropy": 5.0}, True),
        ({"mlm_loss": 5.0, "unigram_entropy": 5.0}, False),
        ({"mlm_loss": 4.0, "unigram_entropy": 5.0, "disc_loss": 0.4, "constant_entropy": 0.3}, False),
        ({"mlm_loss": math.nan, "unigram_entropy": 5.0}, False),
        ({"all_tokens_loss": 4.0}, True),  # it has no baseline
        ({"all_tokens_loss": math.inf}, False),
    ],
)
def test_an_evaluation_is_better_than_its_baselines(heldout, better):
    assert evaluate.is_better_than_baselines(heldout, registry.losses()) is better
