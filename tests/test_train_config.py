import pytest
from cli_runs import small_config

from electra_jax import train_config
from electra_jax.config.errors import UserError
from electra_jax.config.settings import flatten
from electra_jax.objectives import registry


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("objective.mask_prob", 0.0),
        ("objective.mask_prob", 1.0),
        ("objective.replace_prob", 1.1),
        ("objective.temperature", 0.0),
        ("steps", 0),
        ("batch_size", -1),
        ("log_every", 0),
        ("checkpoint.every", 0),
        ("data.heldout_fraction", 1.0),
        ("data.mode", "pair"),
        ("data.seq_length", 4),
        ("model.encoder", "gpt"),
        ("model.dtype", "float16"),
        ("model.dropout", 1.0),
        ("model.modernbert.local_window", 0),
        ("optim.b2", 1.0),
    ],
)
def test_check_refuses_what_no_run_can_have(name, value):
    train_config.resolve(small_config())
    with pytest.raises(UserError, match=f"config.{name}={value!r} cannot be; give "):
        train_config.resolve(small_config(**{name: value}))


def test_a_sequence_longer_than_the_position_table_is_refused():
    with pytest.raises(UserError, match=r"seq_length=64 is longer than config\.model\.max_length=32"):
        train_config.resolve(small_config(data__seq_length=64, model__max_length=32))


def test_check_names_every_setting_by_the_name_it_has():
    named = set().union(*(flatten(small_config(arg=f"objective={system}")) for system in registry.SYSTEMS))
    assert set(train_config._CHECKS) <= named
