import pytest
from cli_runs import ROOT

from electra_jax.config import config_file, settings
from electra_jax.config.errors import UserError
from electra_jax.downstream.finetuning import recipe
from electra_jax.downstream.tasks import glue


@pytest.mark.parametrize("name", glue.TASKS)
def test_glue_as_in_the_paper(name):
    c = config_file.load(ROOT / "configs" / "glue.py", f"task={name}")
    recipe.resolve(c)
    assert (c.optim.learning_rate, c.optim.layer_decay, c.optim.warmup, c.optim.weight_decay) == (1e-4, 0.8, 0.1, 0)
    assert (c.batch_size, c.max_length, c.dropout) == (32, 128, 0.1)
    assert c.epochs == (10 if name in ("rte", "stsb") else 3)
    large = config_file.load(ROOT / "configs" / "glue.py", f"task={name},size=large")
    assert (large.optim.learning_rate, large.optim.layer_decay) == (5e-5, 0.9)


@pytest.mark.parametrize("version", ["1.1", "2.0"])
def test_squad_as_in_the_paper(version):
    c = config_file.load(ROOT / "configs" / "squad.py", f"version={version}")
    recipe.resolve(c)
    assert (c.task.name, c.epochs, c.max_length) == (f"squad{version[0]}", 2, 512)
    assert (c.task.query, c.task.stride, c.task.max_answer, c.task.beam) == (64, 128, 30, 20)


@pytest.mark.parametrize("name", ["table", "tags"])
def test_configs_of_users_tasks(name):
    recipe.resolve(config_file.load(ROOT / "configs" / f"{name}.py", "runlocal"))


@pytest.mark.parametrize(
    ("file", "arg", "task"),
    [("glue", "task=colla,task=rte", "rte"), ("squad", "version=1.1,version=2.0", "squad2")],
)
def test_the_last_value_of_an_argument_counts(file, arg, task):
    assert config_file.load(ROOT / "configs" / f"{file}.py", arg).task.name == task


@pytest.mark.parametrize(
    ("file", "arg", "message"),
    [
        ("glue", "", r"config argument '' names no task of GLUE: expected task=cola or sst2"),
        ("glue", "task=colla", r"config argument 'task=colla' names no task of GLUE"),
        (
            "glue",
            "task=cola,head=long",
            "config argument head='long' is invalid: expected transformers or bert or paper",
        ),
        ("glue", "task=cola,size=huge", "size=huge is unknown: expected small or base or large"),
        ("glue", "task=cola,local", "config argument 'local' is unknown: expected task=, size=, head= or runlocal"),
        ("squad", "version=3", r"'version=3' names no version of SQuAD: expected version=1\.1 or 2\.0"),
    ],
)
def test_invalid_arguments(file, arg, message):
    with pytest.raises(UserError, match=message):
        config_file.load(ROOT / "configs" / f"{file}.py", arg)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("seeds", 0, r"config\.seeds=0 is invalid: expected more than 0"),
        ("optim.layer_decay", 1.5, r"config\.optim\.layer_decay=1\.5 is invalid: expected more than 0, 1 or less"),
        ("seed", 2**32 - 1, r"config\.seed=4294967295 is too large: expected seeds below 2\^32"),
        ("task.name", "squad2", r"config\.task\.name=squad2 does not match .*: --config=squad:version=2\.0"),
        ("task.name", "colla", r"config\.task\.name='colla' is invalid: expected cola or "),
        ("task.beam", 30, r"config\.task\.beam=30 has no effect without config\.head=paper; leave it out"),
        ("pooling", "mean", r"config\.pooling=mean has no effect with this task; leave it out"),
    ],
)
def test_invalid_settings(name, value, message):
    c = config_file.load(ROOT / "configs" / "squad.py", "version=1.1")
    c.update_from_flattened_dict({name: value})
    with pytest.raises(UserError, match=message):
        recipe.resolve(c)


def test_a_head_of_berts_reads_the_state_of_cls():
    with pytest.raises(UserError, match=r"pooling=mean is invalid with head=bert: .* read the state of \[CLS\]"):
        recipe.resolve({**recipe.make("cola", "head=bert"), "pooling": "mean"})


def test_the_paper_s_head_has_its_own_threshold_and_beam():
    paper = recipe.make("squad2", "head=paper")
    assert (paper.head, paper.task.threshold) == ("paper", -2.75)
    assert (recipe.make("squad2").head, recipe.make("squad2").task.threshold) == ("transformers", 0.0)
    paper.shortest_bucket = 16
    with pytest.raises(
        UserError, match=r"config\.shortest_bucket=16 is invalid: expected config\.task\.beam=20 or more"
    ):
        recipe.resolve(paper)


@pytest.mark.parametrize(
    ("task", "used"), [("cola", set()), ("squad1", {"query", "stride", "max_answer", "beam", "f1"})]
)
def test_a_config_has_the_settings_that_its_task_uses(task, used):
    c = recipe.make(task)
    assert set(c.task) == {"name", *used}
    assert recipe.to_dict(recipe.resolve(c)) == c.to_dict()
    assert recipe.resolve(recipe.resolve(c)) == recipe.resolve(c)


def test_a_setting_that_does_not_exist():
    c = recipe.make("cola").to_dict()
    with pytest.raises(UserError, match=r"config\.epoch is unknown; did you mean config\.epochs\?"):
        recipe.resolve({**c, "epoch": 3})
    with pytest.raises(UserError, match=r"config\.task\.color is unknown"):
        recipe.resolve({**c, "task": {"name": "cola", "color": "red"}})


def test_every_setting_is_documented():
    assert all(each.doc.endswith(".") for each in settings.settings_of(recipe.FinetuneConfig).values())
