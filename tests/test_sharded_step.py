import jax
import jax.numpy as jnp
import pytest
from cli_runs import make_objective, small_config

from electra_jax.config.errors import UserError
from electra_jax.runtime import sharding
from electra_jax.sharded_step import ShardedStep


def program(**settings) -> ShardedStep:
    config = small_config(data__seq_length=16, **settings)
    return ShardedStep(config, make_objective(config, 60), sharding.make_mesh(config.mesh, config.batch_size))


def test_moments_are_of_the_type_that_is_asked_for():
    for dtype in ("float32", "bfloat16"):
        state = program(optim__moments_dtype=dtype).state
        of_moments = {x.dtype for x in jax.tree.leaves(state.opt_state) if x.ndim}
        assert of_moments == {jnp.dtype(dtype)}
        assert {x.dtype for x in jax.tree.leaves(state.params)} == {jnp.dtype("float32")}


def test_an_option_that_the_compiler_does_not_know_is_refused():
    with pytest.raises(UserError, match=r"config\.compiler_options=xla_foo=1: .*No such compile option: 'xla_foo'"):
        program(compiler_options="xla_foo=1").compile(16)
