"""Every shipped config: the paper's numbers, and two real steps of the shrunk run."""

import random

import pytest
from cli_runs import ROOT

import electra_jax
from electra_jax import configs, train_config
from electra_jax.config import config_file
from electra_jax.config.errors import UserError
from electra_jax.data import batches, corpus
from electra_jax.modeling.deberta import Deberta, DebertaSettings
from electra_jax.objectives import registry

CONFIGS = ("babylm", "base", "budget", "deberta_v3", "large", "modern", "small", "tiny")  # of pre-training

# The paper's appendix A, and the reference's configure_pretraining.py.
PAPER = {
    "small": (12, 256, 1024, 4, 128, 64, 0.15, 5e-4, 128, 128, 1_000_000),
    "base": (12, 768, 3072, 12, 768, 256, 0.15, 2e-4, 256, 512, 766_000),
    "large": (24, 1024, 4096, 16, 1024, 256, 0.25, 2e-4, 2048, 512, 400_000),
}


@pytest.mark.parametrize("name", PAPER)
def test_sizes_are_the_papers(name):
    c = config_file.load(ROOT / "configs" / f"{name}.py")
    assert PAPER[name] == (
        c.model.layers,
        c.model.width,
        c.model.ffn,
        c.model.heads,
        c.model.embedding_size,
        round(c.model.width * c.model.generator_width),
        c.objective.mask_prob,
        c.optim.learning_rate,
        c.batch_size,
        c.data.seq_length,
        c.steps,
    )
    assert (c.model.dropout, c.model.max_length, c.data.vocab_size, c.model.encoder) == (0.1, 512, 30522, "bert")
    assert (c.optim.warmup_steps, c.optim.weight_decay, c.optim.b1, c.optim.b2) == (10_000, 0.01, 0.9, 0.999)
    assert (c.optim.eps, c.optim.clip_norm) == (1e-6, 1.0)
    assert (c.objective.replace_prob, c.objective.discriminator_weight, c.objective.temperature) == (0.85, 50.0, 1.0)


# Layers, FFN, layers and FFN of the generator: microsoft/DeBERTa, experiments/language_model/rtd_*.json.
DEBERTAS = {
    "xsmall": (12, 384, 1536, 6, 6, 3e-4, 64),
    "small": (6, 768, 3072, 12, 3, 1e-4, 256),
    "base": (12, 768, 3072, 12, 6, 1e-4, 256),
    "large": (24, 1024, 4096, 16, 12, 1e-4, 256),
}


@pytest.mark.parametrize("size", DEBERTAS)
def test_sizes_of_deberta_are_those_of_its_authors(size):
    config = train_config.resolve(config_file.load(ROOT / "configs" / "deberta_v3.py", f"size={size}"))
    model = registry.electra_config(config.objective, config.model, 128_100)
    e, g = model.encoder, model.generator
    found = (e.layers, e.width, e.ffn, e.heads, g.layers, config.optim.learning_rate, config.batch_size)
    assert found == DEBERTAS[size]
    assert (g.width, g.ffn, g.heads, model.embedding_size) == (e.width, e.ffn, e.heads, e.width)
    assert (e.architecture, model.tying, e.own) == (Deberta(), "gdes", DebertaSettings(256, 512))
    o = config.objective
    assert (o.mask_prob, o.replace_prob, o.discriminator_weight, o.temperature) == (0.15, 1.0, 10.0, 1.0)
    assert (config.steps, config.data.seq_length, config.optim.warmup_steps) == (1_000_000, 512, 10_000)


def test_a_size_that_deberta_does_not_have_is_refused():
    with pytest.raises(UserError, match="size=huge is unknown: expected size=xsmall or small or base or large"):
        config_file.load(ROOT / "configs" / "deberta_v3.py", "size=huge")
    with pytest.raises(UserError, match="config argument 'xsmall' is unknown: expected size=xsmall"):
        config_file.load(ROOT / "configs" / "deberta_v3.py", "xsmall,runlocal")
    whole, without = (config_file.load(ROOT / "configs" / "deberta_v3.py", arg) for arg in ("size=base", ""))
    assert whole == without


@pytest.mark.parametrize("system", registry.SYSTEMS)
def test_deberta_has_every_objective(system):
    for arg in (f"size=xsmall,objective={system}", f"size=xsmall,objective={system},runlocal"):
        config = train_config.resolve(config_file.load(ROOT / "configs" / "deberta_v3.py", arg))
        assert config.model.encoder == "deberta"


@pytest.mark.parametrize("size", PAPER)
def test_sizes_of_modern_cost_what_those_of_the_paper_cost(size):
    ours, papers = configs.modern(size=size), getattr(configs, size)()
    cost, of_paper = (electra_jax.count_flops(config).total["model"] for config in (ours, papers))
    assert cost == pytest.approx(of_paper, rel=0.01)
    assert (ours.batch_size, ours.data.seq_length) == (papers.batch_size, papers.data.seq_length)


@pytest.mark.parametrize("flops", [1e13, 3e14, 1e15, 1e17])
@pytest.mark.parametrize("objective", ["electra", "mlm"])
def test_a_budget_is_spent_whatever_the_objective(flops, objective):
    config = configs.budget(flops=flops, objective=objective)
    spent = electra_jax.count_flops(config).total["model"]
    assert flops <= spent < flops + 1.01 * spent / config.steps  # rounded up to a whole step


def test_hours_of_a_device_are_a_budget():
    # Two cores took 8.6 hours for 3e15 FLOPs (docs/reference/models.md).
    night = configs.budget(hours=8.6, device="cpu")
    assert electra_jax.count_flops(night).total["model"] == pytest.approx(3e15, rel=0.01)
    assert night.model == configs.budget(flops=3e15).model
    # 38 ms per step are forecast for an H100 (docs/howto/one_gpu.md).
    gpu = configs.budget(hours=0.2, device="h100")
    assert 0.2 * 3600 / gpu.steps == pytest.approx(0.038, rel=0.01)


@pytest.mark.parametrize(
    ("arguments", "dtype"),
    [
        ({"flops": 1e16, "device": "cpu"}, "float32"),
        ({"hours": 100, "device": "cpu"}, "float32"),
        ({"flops": 1e15, "device": "h100"}, "bfloat16"),
        ({"flops": 3e15}, "float32"),
        ({"flops": 1e16}, "bfloat16"),
    ],
)
def test_the_device_of_a_budget_sets_the_precision(arguments, dtype):
    assert configs.budget(**arguments).model.dtype == dtype


def test_the_encoder_of_a_budget_fills_masks_in_the_last_phase_only():
    assert [configs.budget(objective=each).phases for each in ("electra", "electra_mlm")] == [
        "",
        "8/10 objective.encoder_weight=0; 2/10",
    ]


def test_a_budget_is_given_by_its_name():
    with pytest.raises(
        UserError, match="config argument '1e15' is unknown: expected flops=NUMBER, hours=NUMBER, device=NAME, runlocal"
    ):
        config_file.load(ROOT / "configs" / "budget.py", "1e15,runlocal")


@pytest.mark.parametrize("flops", ["1e12", "2e17", "much", "nan", ""])
def test_a_budget_that_nothing_fits_is_refused(flops):
    with pytest.raises(UserError, match=rf"flops={flops} is invalid: expected a number from 1e\+13 to 1e\+17"):
        configs.budget(flops=flops)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("flops=1e15,hours=8,device=cpu", "flops= and hours= cannot both be set; remove one"),
        ("hours=8", "hours=8 needs a device: expected device=cpu or h100"),
        ("hours=8,device=tpu", "device=tpu is unknown: expected device=cpu or h100"),
        (
            "hours=8,device=h100",
            r"hours=8 is invalid: .*1e\+17 FLOPs, on device=h100 about .* 0.21 hours; got 3.8e\+18",
        ),
        ("hours=,device=cpu", "hours= is invalid: expected"),
    ],
)
def test_hours_that_are_no_budget_are_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        config_file.load(ROOT / "configs" / "budget.py", arguments)


@pytest.mark.parametrize(
    ("track", "millions"),
    [
        ("strict_small", [*range(1, 10), *range(10, 101, 10)]),
        ("strict", [*range(1, 10), *range(10, 100, 10), *range(100, 1001, 100)]),
    ],
)
def test_checkpoints_of_babylm_are_at_the_words_of_its_evaluation(track, millions):
    config = train_config.resolve(configs.babylm(track=track))
    kept = config.checkpoint.kept_steps(config.steps)
    assert [round(step / config.steps * millions[-1]) for step in sorted(kept)] == millions


def test_a_text_of_babylm_is_read_ten_times(tmp_path, text_file):
    lines = text_file.read_text().split()
    documents = [" ".join(random.Random(i).sample(lines, 50)) for i in range(600)]
    (tmp_path / "text").write_text("\n\n".join(documents))
    electra_jax.prepare(tmp_path / "corpus", input=str(tmp_path / "text"), vocab_size=40)
    config = configs.babylm(track="strict", corpus=tmp_path / "corpus")
    assert config.data.input == str(tmp_path / "corpus")
    text = corpus.load(tmp_path / "corpus")
    examples = batches.Packed(text.train, 128, 0, text.tokenizer.special)
    assert config.steps > 20
    assert config.steps * 128 / len(examples) == pytest.approx(10, abs=0.2)
    with pytest.raises(UserError, match=r"corpus=.* is no prepared corpus; make it with electra-jax prepare"):
        configs.babylm(corpus=text_file)
    with pytest.raises(UserError, match="track=multimodal is unknown: expected track=strict_small or strict"):
        configs.babylm(track="multimodal")
    with pytest.raises(UserError, match="argument 'size=small' is unknown: expected track=NAME, corpus=DIR, run"):
        configs.babylm(size="small")


def test_modern_can_be_exported_as_modernbert_at_every_size():
    for size in ("tiny", *PAPER):
        model = configs.modern(size=size).model
        assert (model.encoder, model.embedding_size) == ("modernbert", model.width)
    assert configs.modern() == configs.modern(size="small")
    # Learning rates and initial weights fall with the width.
    tiny, large = configs.modern(size="tiny"), configs.modern(size="large")
    assert tiny.optim.learning_rate / large.optim.learning_rate == pytest.approx(8)
    assert tiny.model.init_stddev / large.model.init_stddev == pytest.approx(8**0.5, rel=1e-2)


@pytest.mark.parametrize("name", CONFIGS)
def test_configs_are_locked_and_pass_the_check(name):
    config = config_file.load(ROOT / "configs" / f"{name}.py")
    train_config.resolve(config)
    with pytest.raises(AttributeError):
        config.step = 3
