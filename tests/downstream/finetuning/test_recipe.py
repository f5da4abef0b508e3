import pytest
from cli_runs import ROOT

from electra_jax.config import config_file
from electra_jax.config.errors import UserError
from electra_jax.downstream.finetuning import recipe
from electra_jax.downstream.tasks import glue


@pytest.mark.parametrize("name", glue.TASKS)
def test_glue_as_in_the_paper(name):
    c = config_file.load(ROOT / "configs" / "glue.py", f"task={name}")
    recipe.check(c)
    assert (c.optim.learning_rate, c.optim.layer_decay, c.optim.warmup, c.optim.weight_decay) == (1e-4, 0.8, 0.1, 0)
    assert (c.batch_size, c.max_length, c.dropout) == (32, 128, 0.1)
    assert c.epochs == (10 if name in ("rte", "stsb") else 3)
    large = config_file.load(ROOT / "configs" / "glue.py", f"task={name},size=large")
    assert (large.optim.learning_rate, large.optim.layer_decay) == (5e-5, 0.9)


@pytest.mark.parametrize("version", ["1.1", "2.0"])
def test_squad_as_in_the_paper(version):
    c = config_file.load(ROOT / "configs" / "squad.py", f"version={version}")
    recipe.check(c)
    assert (c.task.name, c.epochs, c.max_length) == (f"squad{version[0]}", 2, 512)
    assert (c.task.query, c.task.stride, c.task.max_answer, c.task.beam) == (64, 128, 30, 20)


@pytest.mark.parametrize("name", ["table", "tags"])
def test_tasks_of_ones_own(name):
    recipe.check(config_file.load(ROOT / "configs" / f"{name}.py", "runlocal"))


@pytest.mark.parametrize(
    ("file", "arg", "message"),
    [
        ("glue", "", r"configs/glue\.py: names no task; give configs/glue\.py:task=cola or sst2"),
        ("glue", "task=colla", r"configs/glue\.py:task=colla names no task"),
        ("glue", "task=cola,size=huge", "size=huge is unknown; there are small, base, large"),
        ("glue", "task=cola,local", "config argument 'local' is unknown; there are task=, size=, runlocal"),
        ("squad", "version=3", r"version=3 names no version; give configs/squad\.py:version=1\.1 or version=2\.0"),
    ],
)
def test_arguments_that_are_none(file, arg, message):
    with pytest.raises(UserError, match=message):
        config_file.load(ROOT / "configs" / f"{file}.py", arg)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("seeds", 0, r"config\.seeds=0 is invalid: expected more than 0"),
        ("optim.layer_decay", 1.5, r"config\.optim\.layer_decay=1\.5 is invalid: expected more than 0, 1 or less"),
        ("seed", 2**32 - 1, r"config\.seed=4294967295 is too large; a seed is below 2\^32"),
        ("task.name", "squad2", r"config\.task\.name=squad2 is not the task of this config"),
        ("shortest_bucket", 16, r"config\.shortest_bucket=16 has no room for config\.task\.beam=20"),
    ],
)
def test_settings_that_cannot_be(name, value, message):
    c = config_file.load(ROOT / "configs" / "squad.py", "version=1.1")
    c.update_from_flattened_dict({name: value})
    with pytest.raises(UserError, match=message):
        recipe.check(c)
