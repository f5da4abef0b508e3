"""The `paper` accounting against the reference script's output, the paper's tables, and counts by hand."""

import dataclasses

import pytest
from cli_runs import ROOT, make_objective
from ml_collections import ConfigDict

from electra_jax.config import config_file
from electra_jax.flops import paper, paper_runs
from electra_jax.flops.hardware import Parts, sum_networks
from electra_jax.flops.paper import Transformer

# What the reference's flops_computation.py prints.
SCRIPT = {
    "elmo": 3.4114394716e18,
    "gpt": 3.9687522308e19,
    "xlnet": 3.8565820650e21,
    "bert_small": 1.4187399146e18,
    "bert_base": 6.428335104e19,
    "bert_large": 1.9172090588e20,
    "electra_small": 1.2937437983e18,
    "electra_base": 6.4245418343e19,
    "electra_400k": 7.1176060409e20,
    "electra_1.75M": 3.1139526429e21,
    "roberta": 3.1872214358e21,
    "albert": 3.1139239554e22,
    "t5_11b": 4.5819001241e22,
}
# Where tables 1 and 3 of the paper print another figure than the script's; for ELECTRA-Small see below.
NOT_AS_COUNTED = {"elmo": "3.3e18", "electra_small": "1.4e18", "t5_11b": ""}
SHAPES = {
    "small": Transformer(256, 12, 128, embedding_size=128),
    "base": Transformer(768, 12, 128),
    "large": Transformer(1024, 24, 128),
}


def six_digits(value: float):
    return pytest.approx(value, rel=5e-7)


def two_digits(value: float) -> str:
    return f"{value:.1e}".replace("e+", "e")


def run(name: str) -> paper_runs.Run:
    (found,) = (row for row in (*paper_runs.RUNS, *paper_runs.OTHERS) if row.name == name)
    return found


def step_of(size: str, system: str = "electra", **settings: str) -> tuple[ConfigDict, dict[str, Parts]]:
    """A size's config, and what a step of it takes."""
    config = config_file.load(ROOT / "configs" / f"{size}.py", f"objective={system}")
    config.objective.update(settings)
    objective = make_objective(config, 30522)
    return config, paper.train_step(objective, objective.stages[0], config.batch_size, config.data.seq_length)


def test_the_13_totals_of_the_script():
    assert {row.name: row.paper() for row in paper_runs.RUNS} == {name: six_digits(SCRIPT[name]) for name in SCRIPT}


def test_the_figures_that_the_paper_prints():
    counted = {row.name: two_digits(row.paper()) for row in paper_runs.RUNS}
    assert {row.name: row.printed for row in paper_runs.RUNS} == counted | NOT_AS_COUNTED


def test_electra_small_is_printed_with_a_generator_of_width_128():
    small = run("electra_small")
    assert small.generator.width == 64
    wider = dataclasses.replace(small, generator=dataclasses.replace(small.generator, width=128))
    assert wider.paper() == pytest.approx(1.424e18, rel=5e-4)
    assert two_digits(wider.paper()) == small.printed


def test_the_fractions_of_electra_small_are_as_printed():
    assert [row.printed for row in paper_runs.FRACTIONS] == ["1.4e18", "7.1e17", "3.6e17", "1.8e17", "8.9e16"]
    assert [row.steps for row in paper_runs.FRACTIONS] == [1e6, 5e5, 2.5e5, 1.25e5, 6.25e4]
    for row in paper_runs.FRACTIONS:
        assert two_digits(row.paper()) == row.printed


@pytest.mark.parametrize(("size", "known"), [("small", 3.68e9), ("base", 2.86e10), ("large", 8.75e10)])
def test_forward_at_length_128(size, known):
    """Layers, embeddings and binary classification, as the script counts inference."""
    forward = SHAPES[size].body() + SHAPES[size].discriminator()
    assert forward.total == pytest.approx(known, rel=2e-3)


# Width 2, length 3, FFN 5, one head, 7 words. By hand, of a position:
#   attention 24 + 6 (queries, keys, values), 12 (scores), 15 + 12 + 3 (softmax, dropout, scale), 12 (weighted sum),
#             8 + 2 + 8 + 2 (output, bias, dropout, residual), 5 (layer norm; 10 in full)
#   FFN       20 + 20, 40 (GELU), 5 + 2 (biases), 8 + 2 (dropout, residual), 10 (layer norm)
#   tables    28 (words), 20 + 4 (position and segment, added), 18 (layer norm and dropout)
TINY = Transformer(2, 1, 3, vocabulary=7, ffn=5, heads=1)


def test_a_block_counted_by_hand():
    assert TINY.body() == Parts(embeddings=3 * 70, attention=3 * 109, ffn=3 * 107)
    assert dataclasses.replace(TINY, layers=4).body() == Parts(210, 4 * 327, 4 * 321)
    assert dataclasses.replace(TINY, cross=True).body() == Parts(210, 2 * 327, 321)
    assert dataclasses.replace(TINY, gated=True).body() == Parts(210, 327, 3 * (107 + 20))
    # Two heads: twice the softmax, dropout and scale.
    assert dataclasses.replace(TINY, heads=2).body() == Parts(210, 3 * (109 + 30), 321)
    # Queries, keys and values 6 wide: 72 + 18 and 36; the script takes the rest as if they were 2 wide.
    assert dataclasses.replace(TINY, attention_width=6).body() == Parts(210, 3 * (109 + 60 + 24), 321)


def test_embeddings_counted_by_hand():
    # 4 wide: tables twice as wide, and a projection to 2: 16 + 2.
    assert dataclasses.replace(TINY, embedding_size=4).body().embeddings == 3 * (2 * 70 + 18)
    assert dataclasses.replace(TINY, absolute=False).body().embeddings == 3 * (70 - 24)


def test_heads_counted_by_hand():
    # Of a position: dense 8 + 2, GELU and layer norm 26; words 28, softmax 35, the target 14.
    assert TINY.mlm(share=1.0) == Parts(head=3 * 36, softmax=3 * 77)
    assert TINY.mlm(share=1 / 3).total == pytest.approx(113)
    assert TINY.mlm().total == pytest.approx(0.15625 * 3 * 113)
    towers = dataclasses.replace(TINY, towers=2)
    assert towers.mlm(share=1.0) == Parts(head=3 * (36 + 8), softmax=3 * 77)
    # As wide as the network and behind it a map to 4: 8 + 2, 26 and 16; words 56.
    wide = dataclasses.replace(TINY, embedding_size=4, wide_head=True)
    assert wide.mlm(share=1.0) == Parts(head=3 * 52, softmax=3 * 105)
    assert dataclasses.replace(TINY, wide_head=True).mlm() == TINY.mlm()
    # Dense 8 + 2, GELU 16, classifier 4.
    assert TINY.discriminator() == Parts(head=3 * 30)


def test_a_narrow_network_has_one_head():
    assert Transformer(32, 2, 16).body() == Transformer(32, 2, 16, heads=1).body()


def test_training_is_twice_the_forward_pass():
    assert paper.training(Parts(1, 2, 3, 4, 5), batch=7, steps=11) == 2 * 7 * 11 * 15


def test_the_slip_of_the_layer_norm_and_its_correction():
    assert dataclasses.replace(TINY, norm_slip=False).body() == Parts(210, 3 * (109 + 5), 321)
    # 5 operations for each element but one, of every layer's output, in both networks.
    small = run("electra_small")
    missing = 2 * 128 * 1e6 * 12 * 128 * 5 * (255 + 63)
    assert small.paper(corrected=True) - small.paper() == pytest.approx(missing, rel=1e-9)
    assert run("elmo").paper(corrected=True) == run("elmo").paper()


def test_bert_large_as_the_authors_ran_it():
    ours = run("bert_large 464k x 2048")
    assert ours.paper() == pytest.approx(7.117e20, rel=1e-4)
    assert two_digits(ours.paper()) == ours.printed == "7.1e20"


@pytest.mark.parametrize(
    ("size", "system", "steps", "name"),
    [
        ("small", "electra", 1e6, "electra_small"),
        ("base", "electra", 766_000, "electra_base"),
        ("large", "electra", 400_000, "electra_400k"),
        ("small", "mlm", 1.45e6, "bert_small"),
        ("base", "mlm", 1e6, "bert_base"),
        ("large", "mlm", 464_000, "bert_large 464k x 2048"),
    ],
)
def test_our_configs_are_the_papers_runs(size, system, steps, name):
    config, counted = step_of(size, system)
    assert list(counted) == (["encoder"] if system == "mlm" else ["generator", "encoder"])
    if system == "electra":  # the runs of BERT are as long as --config.steps says
        assert config.steps == steps
    assert steps * sum_networks(counted) == six_digits(run(name).paper())


@pytest.mark.parametrize(
    ("size", "lookups", "without", "generator"),
    [("small", 39.6, 7.82e17, 27.2), ("base", 29.3, 4.54e19, 25.3), ("large", 14.7, 6.07e20, 14.7)],
)
def test_shares_of_the_total(size, lookups, without, generator):
    """Word look-ups as one-hot products, in percent; the total without them; the generator, in percent."""
    config, counted = step_of(size)
    total = sum_networks(counted)
    tokens = config.batch_size * config.data.seq_length
    of_a_network = 2 * tokens * 2 * config.model.embedding_size * 30522
    assert all(parts.embeddings > of_a_network for parts in counted.values())
    assert round(100 * 2 * of_a_network / total, 1) == lookups
    assert config.steps * (total - 2 * of_a_network) == pytest.approx(without, rel=1e-3)
    assert round(100 * counted["generator"].total / total, 1) == generator


@pytest.mark.parametrize(("size", "length", "known"), [("small", 128, 3.05e9), ("base", 128, 2.63e10)])
def test_forward_with_lookups_that_are_free(size, length, known):
    """Of a sequence, both networks."""
    config, _ = step_of(size)
    lookups = 2 * length * 2 * config.model.embedding_size * 30522
    objective = make_objective(config, 30522)
    step = sum_networks(paper.train_step(objective, objective.stages[0], 1, length))
    assert step / 2 - lookups == pytest.approx(known, rel=2e-3)


def test_a_pass_without_a_gradient_and_a_head_that_reads_everything():
    config = config_file.load(ROOT / "configs" / "base.py", "objective=two_stage")
    objective = make_objective(config, 30522)
    base, (first, second) = dataclasses.replace(SHAPES["base"], length=512), objective.stages
    generator, discriminator = base.body() + base.mlm(), base.body() + base.discriminator()
    assert paper.train_step(objective, first, 3, 512) == {"generator": generator * 6}
    assert paper.train_step(objective, second, 3, 512) == {"generator": generator * 3, "encoder": discriminator * 6}
    _, counted = step_of("base", "all_tokens_mlm")
    assert counted["encoder"] == (base.body() + base.mlm(share=1.0)) * (2 * 256)
    _, counted = step_of("base", "electra_mlm")
    assert counted["encoder"] == (base.body() + base.discriminator() + base.mlm()) * (2 * 256)
    _, counted = step_of("base", "electra_mlm", encoder_positions="all")
    assert counted["encoder"] == (base.body() + base.discriminator() + base.mlm(share=1.0)) * (2 * 256)


def test_modernbert_has_a_gate_and_no_tables_of_positions():
    config = config_file.load(ROOT / "configs" / "small.py", "objective=mlm")
    config.model.encoder = "modernbert"
    shape = dataclasses.replace(SHAPES["small"], gated=True, wide_head=True, absolute=False)
    objective = make_objective(config, 30522)
    counted = paper.train_step(objective, objective.stages[0], 1, 128)
    assert counted == {"encoder": (shape.body() + shape.mlm()) * 2}


def test_deberta_has_two_relative_terms_and_no_tables_of_positions():
    """Of 128 positions, each meets 191 distances in blocks of 64; 255 rows are in use."""
    config = config_file.load(ROOT / "configs" / "small.py", "generator=unigram")
    config.model.encoder = "deberta"
    bert = dataclasses.replace(SHAPES["small"], absolute=False)
    objective = make_objective(config, 30522)
    counted = paper.train_step(objective, objective.stages[0], 3, 128)["encoder"]
    plain = (bert.body() + bert.discriminator()) * (2 * 3)
    terms = 12 * 128 * 2 * (2 * 256 * 191 + 128 * 4)
    rows = 255 * (5 * 256 + 12 * (2 * (2 * 256 * 256 + 256) + 4 * 256))
    assert counted.attention == plain.attention + 2 * (3 * terms + rows)
    assert counted.head == plain.head + 2 * 3 * 128 * (256 + 5 * 256)
    assert (counted.embeddings, counted.ffn) == (plain.embeddings, plain.ffn)
    config.model.deberta.discriminator_head = "linear"
    objective = make_objective(config, 30522)
    assert paper.train_step(objective, objective.stages[0], 3, 128)["encoder"].head == 2 * 3 * 128 * 2 * 256


def electrics_generator() -> tuple[Parts, Parts, Parts]:
    """Of a sequence of 512 at base size: as counted; a tower's own forward pass; the forward pass of the head."""
    config = config_file.load(ROOT / "configs" / "base.py", "objective=electric")
    objective = make_objective(config, 30522)
    counted = paper.train_step(objective, objective.stages[0], 1, 512)["generator"]
    tower = Transformer(256, 12, 512, embedding_size=768)
    return counted, tower.body(), dataclasses.replace(tower, towers=2).mlm(share=1.0)


def test_electrics_generator_has_two_towers_layers_and_a_head_on_both():
    counted, tower, head = electrics_generator()
    assert (counted.attention, counted.ffn) == (2 * 2 * tower.attention, 2 * 2 * tower.ffn)
    assert (counted.head, counted.softmax) == (2 * head.head, 2 * head.softmax)


def test_electrics_towers_read_one_embedding():
    """Each tower has its own projection; the tables are looked up once for both."""
    counted, tower, _ = electrics_generator()
    projection = 512 * (2 * 256 * 768 + 256)
    assert counted.embeddings == 2 * (tower.embeddings + projection)
