"""Which loss trains which parameters: the whole of it, for every system."""

import functools

import jax
import numpy as np
import pytest
import systems

from electra_jax.objectives import registry

# (system, tying, what is on, step): the top-level parameters that it trains. Terms are told apart by setting the
# weights of the others to 0; `mlm` has one term and no weight. Steps matter to `two_stage` alone; its generator learns
# for 5 of 10.
ALWAYS = 6
TABLE = {
    ("electra", "none", "generator_weight", ALWAYS): "generator_embeddings generator generator_head",
    ("electra", "none", "discriminator_weight", ALWAYS): "embeddings encoder discriminator_head",
    ("electra", "embeddings", "generator_weight", ALWAYS): "embeddings generator generator_head",
    ("electra", "embeddings", "discriminator_weight", ALWAYS): "embeddings encoder discriminator_head",
    ("electra", "all", "generator_weight", ALWAYS): "embeddings encoder generator_head",
    ("electra", "all", "discriminator_weight", ALWAYS): "embeddings encoder discriminator_head",
    ("electra", "gdes", "generator_weight", ALWAYS): "generator_embeddings generator generator_head",
    ("electra", "gdes", "discriminator_weight", ALWAYS): "embeddings encoder discriminator_head",
    ("electra_15", "", "generator_weight", ALWAYS): "embeddings generator generator_head",
    ("electra_15", "", "discriminator_weight", ALWAYS): "embeddings encoder discriminator_head",
    ("electra_mlm", "", "generator_weight", ALWAYS): "embeddings generator generator_head",
    ("electra_mlm", "", "discriminator_weight", ALWAYS): "embeddings encoder discriminator_head",
    ("electra_mlm", "", "encoder_weight", ALWAYS): "embeddings encoder mlm_head",
    ("replace_mlm", "", "generator_weight", ALWAYS): "embeddings generator generator_head",
    ("replace_mlm", "", "encoder_weight", ALWAYS): "embeddings encoder mlm_head",
    ("all_tokens_mlm", "", "generator_weight", ALWAYS): "embeddings generator generator_head",
    ("all_tokens_mlm", "", "encoder_weight", ALWAYS): "embeddings encoder mlm_head copy_gate",
    ("mlm", "", None, ALWAYS): "embeddings encoder mlm_head",
    ("two_stage", "", "generator_weight", 4): "generator_embeddings generator generator_head",
    ("two_stage", "", "discriminator_weight", 4): "",
    ("two_stage", "", "generator_weight", 5): "",
    ("two_stage", "", "discriminator_weight", 5): "embeddings encoder discriminator_head",
    ("adversarial", "", "generator_weight", ALWAYS): "embeddings generator generator_head baseline",
    ("adversarial", "", "discriminator_weight", ALWAYS): "embeddings encoder discriminator_head",
    ("electric", "", "generator_weight", ALWAYS): "embeddings generator generator_head",
    ("electric", "", "discriminator_weight", ALWAYS): "embeddings encoder discriminator_head",
    ("frozen_generator", "", "discriminator_weight", ALWAYS): "embeddings encoder discriminator_head",
}

# What each system has beside what its losses reach.
UNTRAINED = {"frozen_generator": {"generator_embeddings", "generator", "generator_head"}}


def weights(system: str) -> set[str]:
    return {setting for setting in registry.SYSTEMS[system].settings if setting.endswith("_weight")}


def reached(metric: str, *system: str, **how) -> set[str]:
    """The top-level parameters that have a gradient of `metric`."""
    params = systems.parameters(*system)
    found = {part: systems.slopes(*system, direction=systems.only(part, params), **how)[metric] for part in params}
    assert np.all(np.isfinite(list(found.values())))
    return {part for part, slope in found.items() if slope != 0}


def is_slow(row: tuple[str, str, str | None, int]) -> bool:
    """Whether another row and cheaper tests hold it.

    The loss of `electra_15` is that of `electra` at fewer positions, and that of `frozen_generator` is the second one
    of `two_stage`, whose networks share nothing.
    """
    return row[0] in ("electra_15", "frozen_generator") or row[1] == "none"


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, marks=pytest.mark.slow) if is_slow(row) else row for row in TABLE],
    ids=lambda row: "-".join(str(x) for x in row if x),
)
def test_which_parameters_a_term_trains(row):
    system, tying, term, step = row
    on = {weight: float(weight == term) for weight in weights(system)}
    assert reached("loss", system, tying, step=step, **on) == set(TABLE[row].split())


def test_the_table_has_every_system_term_and_parameter():
    assert {row[0] for row in TABLE} == set(registry.SYSTEMS)
    assert {row[1] for row in TABLE if row[0] == "electra"} == set(systems.TYINGS)
    for system, tying in {row[:2] for row in TABLE}:
        rows = [row for row in TABLE if row[:2] == (system, tying)]
        assert {row[2] for row in rows} - {None} == weights(system)
        trained = set().union(*(TABLE[row].split() for row in rows))
        assert trained | UNTRAINED.get(system, set()) == set(systems.parameters(system, tying))


@pytest.mark.slow
@pytest.mark.parametrize("system", registry.SYSTEMS)
def test_every_system_trains_a_deberta(system):
    """All of its parts, over the stages."""
    o = systems.objective(system, model__encoder="deberta", model__deberta__position_buckets=8)
    params = systems.random_parameters(o)
    trained = set()
    for stage in o.stages:
        loss = functools.partial(o.loss, stage, x=systems.inputs(o))
        gradient, _ = jax.jit(jax.grad(loss, has_aux=True))(params)
        sums = {part: sum(float(np.abs(leaf).sum()) for leaf in jax.tree.leaves(of)) for part, of in gradient.items()}
        assert np.all(np.isfinite(list(sums.values())))
        trained |= {part for part, total in sums.items() if total > 0}
    assert trained == {*params} - UNTRAINED.get(system, set())


def test_the_baseline_of_the_adversarial_system_learns_and_nothing_learns_through_it():
    assert reached("baseline_loss", "adversarial") == {"baseline"}
    assert reached("reward", "adversarial") == set()
