"""What the tests of objectives share: every system at the smallest size, a batch, losses and slopes, compiled once."""

import dataclasses
import functools
import zlib
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
from cli_runs import make_objective
from ml_collections import ConfigDict

from electra_jax import guard, metrics, optim, train_config
from electra_jax import step as step_lib
from electra_jax.data.tokenizer import OWN
from electra_jax.modeling import electra as networks
from electra_jax.modeling import plain_attention, subnetwork
from electra_jax.modeling.batch import Batch
from electra_jax.objectives import masking
from electra_jax.objectives.segments import Phase, Segment, make_segments, segment_at
from electra_jax.objectives.spec import Inputs, Objective

VOCABULARY, PADDED, LENGTH = 60, 128, 16
ALONE = 31  # a token without a cluster
STEPS = 10
TYINGS = ("none", "embeddings", "all", "gdes")
# Numbers that a compiled loss takes as inputs: another value is no other program.
_TRACED = ("generator_weight", "discriminator_weight", "encoder_weight", "temperature")
# Losses do not read these, but for Electric's.
_OF_MASKING = ("mask_prob", "mask_prob_end", "replace_prob", "random_prob", "whole_words")


def config(name: str, tying: str = "", generator: str = "transformer", **overrides: Any) -> ConfigDict:
    """The system `name` at the smallest size, with settings by their dotted names, `__` for a dot."""
    made = train_config.paper()
    made.steps = STEPS
    made.data.seq_length = LENGTH
    sizes = {"layers": 1, "width": 32, "ffn": 32, "heads": 2, "embedding_size": 16, "generator_width": 0.5}
    made.model.update(**sizes, max_length=LENGTH, dropout=0.0, dtype="float32")
    made.objective.update(mask_prob=0.4, temperature_decay=0.5)
    train_config.choose_objective(made, name, generator)
    if tying:
        made.model.tying = tying
    if tying == "all":
        made.model.update(generator_width=1.0, generator_layers=1.0)
    made.update_from_flattened_dict({name.replace("__", "."): value for name, value in overrides.items()})
    return made


@functools.cache
def objective(name: str, tying: str = "", generator: str = "transformer", **overrides: Any) -> Objective:
    """Token i of the training text is as frequent as i + 1, special ones included; every third begins a word.

    Those that are equal modulo 4 are a cluster, but for special tokens and `ALONE`.
    """
    starts = np.arange(VOCABULARY) % 3 == 0
    clusters = np.where(np.arange(VOCABULARY) < len(OWN), -1, np.arange(VOCABULARY) % 4)
    clusters[ALONE] = -1
    counts = np.arange(1, VOCABULARY + 1)
    return make_objective(config(name, tying, generator, **overrides), VOCABULARY, counts, OWN, starts, clusters)


def shapes(o: Objective) -> Any:
    """Of its parameters."""
    return subnetwork.param_shapes(o.model.config)


def random_parameters(o: Objective, seed: int = 0) -> Any:
    """Far from initial ones, so that networks tell inputs apart; equal names of equal shapes have equal numbers."""

    return random_like(shapes(o), seed)


def random_like(tree: Any, seed: int) -> Any:
    """As `random_parameters`, for any tree of parameters or shapes."""

    def draw(path: Any, leaf: Any) -> np.ndarray:
        name = jax.tree_util.keystr(path)
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        return np.asarray(name.endswith("['scale']") + 0.3 * rng.standard_normal(leaf.shape), np.float32)

    return jax.tree_util.tree_map_with_path(draw, tree)


def with_generator_that_says(token: int, params: Any) -> Any:
    """Parameters whose generator gives one token nearly all the probability, whatever it reads."""
    bias = np.where(np.arange(PADDED) == token, np.float32(50), np.float32(0))
    return {**params, "generator_head": {**params["generator_head"], "bias": bias}}


@functools.cache
def parameters(name: str, tying: str = "", generator: str = "transformer") -> Any:
    return random_parameters(objective(name, tying, generator))


@functools.cache
def batch() -> Batch:
    """A pair of segments and padding; two sequences in one row; a row that is full; one that is nearly empty."""
    ids = [
        [2, 10, 11, 12, 13, 14, 15, 3, 20, 21, 22, 23, 24, 3, 0, 0],
        [2, 30, 31, 32, 33, 34, 3, 2, 10, 40, 11, 41, 12, 42, 43, 3],
        [2, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 5, 6, 7, 8, 3],
        [2, 1, 9, 25, 26, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    ]
    segments = np.zeros((4, LENGTH), np.int32)
    segments[0, 8:14] = 1
    sequences = np.minimum(ids, 1)
    sequences[1, 7:] = 2
    arrays = Batch(ids, segments, sequences)
    return Batch(*(jnp.asarray(value, jnp.int32) for value in arrays))


def with_settings(o: Objective, **settings: Any) -> Objective:
    return dataclasses.replace(o, settings=dataclasses.replace(o.settings, **settings))


def inputs(o: Objective, step: int = 6, text: Any = None) -> Inputs:
    masked = o.mask(jax.random.key(1), text or batch(), jnp.int32(step))
    return Inputs(masked, masking.count(masked), jnp.int32(step))


@functools.cache
def _inputs(system: tuple[str, ...], step: int, of_masking: tuple[tuple[str, Any], ...]) -> Inputs:
    return inputs(with_settings(objective(*system), **dict(of_masking)), step)


@functools.cache
def _program(name: str, tying: str, generator: str, stage: int, static: tuple[tuple[str, Any], ...]) -> Any:
    o = with_settings(objective(name, tying, generator), **dict(static))

    def loss(params: Any, x: Inputs, numbers: dict[str, Any]) -> Any:
        total, measured = with_settings(o, **numbers).loss(o.stages[stage], params, x)
        return total, {name: metric for name, metric in measured.items() if isinstance(metric, metrics.Mean)}

    def slopes(params: Any, x: Inputs, numbers: dict[str, Any], direction: Any) -> Any:
        # One pass gives the slopes of all means, but forward mode goes through no custom_vjp.
        with (
            mock.patch.object(plain_attention, "attend", lambda *args: plain_attention._forward(*args)[0]),
            mock.patch.object(networks, "token_products", networks.token_products.__wrapped__),
        ):
            return jax.jvp(lambda params: loss(params, x, numbers), (params,), (direction,))

    # No test asks these for slopes, and a program without them takes half as long to compile.
    return jax.jit(loss) if static or generator != "transformer" else jax.jit(slopes)


def one_phase(o: Objective) -> tuple[Segment, ...]:
    return make_segments(o, [Phase(o.steps, LENGTH, 4, o.settings, 1e-3)])


def _run(
    name: str,
    tying: str = "",
    generator: str = "transformer",
    *,
    direction: Any = None,
    params: Any = None,
    step: int = 6,
    text: Any = None,
    **settings: Any,
) -> Any:
    tying = "" if tying == "embeddings" else tying  # the default; one program for both
    params = parameters(name, tying, generator) if params is None else params
    o = with_settings(objective(name, tying, generator), **settings)
    of_masking = tuple((name, value) for name, value in settings.items() if name in _OF_MASKING)
    x = inputs(o, step, text) if text else _inputs((name, tying, generator), step, of_masking)
    used = {*o.system.settings} & {*_TRACED}
    numbers = {name: np.float32(getattr(o.settings, name)) for name in used}
    free = _TRACED if name == "electric" else _TRACED + _OF_MASKING
    if name == "two_stage":
        free += ("generator_steps",)  # it chooses the stage, which a loss is given
    static = {name: value for name, value in settings.items() if name not in free}
    stage = o.stages.index(segment_at(one_phase(o), step).stage)
    program = _program(name, tying, generator, stage, tuple(sorted(static.items())))
    if static or generator != "transformer":
        return program(params, x, numbers), None
    return program(params, x, numbers, jax.tree.map(np.zeros_like, params) if direction is None else direction)


def loss(*system: str, **how: Any) -> dict[str, float]:
    """The loss and the means that are measured with it.

    Args:
      system: as the arguments of `objective`.
      how: `params`, `step`, `text` (a batch), and settings.
    """
    (total, measured), _ = _run(*system, **how)
    return {"loss": float(total), **metrics.numbers(jax.device_get(measured))}


def slopes(*system: str, direction: Any, **how: Any) -> dict[str, float]:
    """The derivatives of the loss and of the sum behind each mean, as the parameters move in `direction`."""
    _, (total, measured) = _run(*system, direction=direction, **how)
    return {"loss": float(total), **{name: float(mean.sum) for name, mean in measured.items()}}


def only(part: str, params: Any) -> Any:
    """A direction in which only the parameters `part` move, all of them."""
    moved = random_like(params, seed=5)
    return {name: value if name == part else jax.tree.map(np.zeros_like, value) for name, value in moved.items()}


def train(settings: ConfigDict, steps: int) -> tuple[list[Any], list[float]]:
    """The states before the first and after each of `steps` steps on one batch, and the learning rates of the steps."""
    o = make_objective(settings, VOCABULARY)
    optimizer, schedule = optim.make(settings.optim, *(stage.steps for stage in o.stages))
    params = random_parameters(o)
    states = [step_lib.TrainState(jnp.int32(0), params, optimizer.init(params), guard.no_norms())]
    segments = one_phase(o)
    train_steps = {
        segment.start: jax.jit(step_lib.make_train_step(o, segment.stage, optimizer, schedule, seed=0))
        for segment in segments
    }
    rates = []
    for done in range(steps):
        segment = segment_at(segments, done)
        state, measured = train_steps[segment.start](states[-1], batch())
        following = segment_at(segments, done + 1)
        if following is not segment and following.stage.init_params is not None:
            state = state.replace(params=following.stage.init_params(state.params))
        states.append(state)
        rates.append(float(measured["learning_rate"].sum))
    return [jax.device_get(state) for state in states], rates


def moments(state: Any, part: str) -> list[np.ndarray]:
    """Adam's first moments of the parameters `part`."""
    adam = next(s for s in state.opt_state if isinstance(s, optax.ScaleByAdamState))
    return jax.tree.leaves(adam.mu[part])


def same(a: Any, b: Any) -> bool:
    """Whether two trees of one shape are equal to the bit."""
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))
