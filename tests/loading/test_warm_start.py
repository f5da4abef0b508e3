"""What a run begins with: which parameters come from where, and what is refused or adapted."""

import dataclasses

import jax
import numpy as np
import pytest
import tiny_models

from electra_jax.config.errors import UserError
from electra_jax.loading import warm_start
from electra_jax.modeling.subnetwork import Network, extract, network_config
from electra_jax.train_config import TrainConfig, WarmStartConfig


class Pieces:
    """A vocabulary of names alone."""

    def __init__(self, names, folds=True, special=(0, 1, 2, 3, 4)):
        self._names, self.folds, self.special = list(names), folds, special

    def __len__(self):
        return len(self._names)

    def name_of(self, id_):
        return self._names[id_]

    def encode(self, lines):
        return [[len(line) if self.folds else -len(line)] for line in lines]


OURS = Pieces(f"piece {i}" for i in range(tiny_models.VOCABULARY))


def given(o, part="encoder", network=None, seed=1, pieces=OURS, layers="same") -> warm_start.Donor:
    """A network of the system `o` for a part of another."""
    taken = extract(o.model.config, tiny_models.parameters(o, seed), network or part)
    return warm_start.Donor("config.init_from=there", part, taken, pieces, layers)


def begin(o, *them, layers="same", **settings):
    """(parameters, what was said) of a run of `o` that begins with these."""
    them = [dataclasses.replace(donor, layers=layers) if layers != "same" else donor for donor in them]
    said: list[str] = []
    start = warm_start.WarmStart(WarmStartConfig(**settings), o.model.config, OURS, said.append)
    return start.apply(tiny_models.parameters(o, seed=2), them), said


def shaped(o, part="encoder", network=None, layers="same") -> warm_start.Donor:
    """The same for `check`, without parameters."""
    network = Network(network_config(o.model.config, network or part), None)
    return warm_start.Donor("config.init_from=there", part, network, OURS, layers)


def check(o, *them, **settings) -> None:
    """Raises UserError where these do not fit `o`."""
    config = TrainConfig(init=WarmStartConfig(**settings))
    for donor in them:
        warm_start._check_shape(config, donor, o.model.config)


def test_an_encoder_alone_leaves_the_generator_at_random():
    o = tiny_models.system("electra")
    fresh, theirs = tiny_models.parameters(o, seed=2), tiny_models.parameters(o, seed=1)
    params, said = begin(o, given(o))
    for name in ("embeddings", "encoder", "discriminator_head"):
        assert tiny_models.same(params[name], theirs[name]), name
    for name in ("generator", "generator_head"):
        assert tiny_models.same(params[name], fresh[name]), name
    decision = "loaded discriminator_head, embeddings, encoder; random: generator, generator_head"
    assert said == [f"config.init_from=there: {decision}"]


@pytest.mark.parametrize(("how", "expected"), [("first", [0, 1]), ("spread", [0, 2])])
@pytest.mark.parametrize("tying", ["none", "embeddings", "gdes"])
def test_a_generator_can_start_from_the_encoders_layers_and_embeddings(tying, how, expected):
    o = tiny_models.system("electra", tying, model__layers=4, model__generator_width=1.0, model__generator_layers=0.5)
    fresh, theirs = tiny_models.parameters(o, seed=2), tiny_models.parameters(o, seed=1)
    donor = given(o)
    params, said = begin(o, donor, given(o, "generator", "encoder", layers=how))
    for name in ("ffn_in", "attention"):
        ours, whole = (jax.tree.leaves(tree["layers"][name]) for tree in (params["generator"], theirs["encoder"]))
        for one, other in zip(ours, whole, strict=True):
            np.testing.assert_array_equal(one, other[expected])
    assert tiny_models.same(params["generator_head"], fresh["generator_head"])
    assert tiny_models.same(params["discriminator_head"], theirs["discriminator_head"])
    for part in ("encoder", "generator"):
        tables = extract(o.model.config, params, part).params["embeddings"]
        np.testing.assert_array_equal(tables["word"], donor.network.params["embeddings"]["word"])
    assert said[-1].endswith("; random: generator_head")


def test_a_generator_of_another_width_cannot_start_from_the_encoder():
    o = tiny_models.system("electra")
    with pytest.raises(UserError, match=r"its encoder has width=32 \(this run: 16\).*; set config\.model\.generator_w"):
        check(o, shaped(o, "generator", "encoder", layers="spread"), generator="spread")
    with pytest.raises(UserError, match=r"its generator has width=32 \(this run: 16\).*; change config\.model\.gen"):
        check(o, shaped(o, "generator", "encoder"))


@pytest.mark.parametrize("tying", ["none", "embeddings", "all"])
def test_both_networks_of_a_run_come_back_as_they_were(tying):
    o = tiny_models.system("electra", tying)
    params, said = begin(o, given(o), given(o, "generator"))
    assert tiny_models.same(params, tiny_models.parameters(o, seed=1))
    assert not any("random" in text or "differ" in text for text in said)


@pytest.mark.parametrize("network", ["encoder", "generator"])
def test_gdes_takes_what_both_networks_use(network):
    """What it keeps is the difference of the two tables."""
    o = tiny_models.system("electra", "gdes")
    params, _ = begin(o, given(o), given(o, "generator"))
    before, after = (extract(o.model.config, p, network).params for p in (tiny_models.parameters(o, seed=1), params))
    for name in ("word", "position", "segment"):
        np.testing.assert_allclose(after["embeddings"][name], before["embeddings"][name], atol=1e-6)
    params, _ = begin(o, given(o))
    assert np.all(params["embeddings"]["word"] == 0)  # of an encoder alone the generator's tables are the encoder's


def test_a_generator_alone_brings_the_shared_embeddings():
    o = tiny_models.system("electra")
    params, said = begin(o, given(o, "generator"))
    theirs = tiny_models.parameters(o, seed=1)
    assert tiny_models.same(params["embeddings"], theirs["embeddings"])
    assert tiny_models.same(params["generator"], theirs["generator"])
    assert said[-1].endswith("random: discriminator_head, encoder")


def test_files_that_disagree_about_shared_embeddings_are_named():
    o = tiny_models.system("electra")
    params, said = begin(o, given(o, seed=1), given(o, "generator", seed=3))
    assert tiny_models.same(params["embeddings"], tiny_models.parameters(o, seed=1)["embeddings"])
    assert tiny_models.same(params["generator"], tiny_models.parameters(o, seed=3)["generator"])
    assert said[0].startswith("warning: the generator's embeddings differ from the encoder's (")
    assert "word by up to" in said[0]


def test_of_a_masked_language_model_the_encoder_becomes_a_discriminator_without_a_head():
    o, source = tiny_models.system("electra"), tiny_models.system("mlm")
    params, said = begin(o, given(source))
    assert tiny_models.same(params["encoder"], tiny_models.parameters(source, seed=1)["encoder"])
    assert tiny_models.same(params["discriminator_head"], tiny_models.parameters(o, seed=2)["discriminator_head"])
    assert "random: discriminator_head, generator, generator_head" in said[-1]


# Networks of other systems that serve as the pre-trained generator: (system, tying), settings, which network.
AS_GENERATOR = {"model__width": 16, "model__ffn": 16, "model__heads": 1}
SOURCES = [
    (("electra", "embeddings"), {}, "generator"),
    (("electra", "none"), {}, "generator"),
    (("electra", "gdes"), {}, "generator"),
    (("replace_mlm",), {}, "generator"),
    (("adversarial",), {}, "generator"),
    (("mlm",), AS_GENERATOR, "encoder"),
]


@pytest.mark.parametrize(("source", "settings", "network"), SOURCES, ids=str)
def test_a_resting_generator_is_that_of_another_system(source, settings, network):
    o, other = tiny_models.system("frozen_generator"), tiny_models.system(*source, **settings)
    params, _ = begin(o, given(other, "generator", network))
    theirs = extract(other.model.config, tiny_models.parameters(other, seed=1), network).params
    assert tiny_models.same(params["generator_embeddings"], theirs["embeddings"])
    assert tiny_models.same(params["generator"], theirs["encoder"])
    assert tiny_models.same(params["generator_head"], theirs["mlm_head"])
    assert tiny_models.same(params["encoder"], tiny_models.parameters(o, seed=2)["encoder"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"model__layers": 3},
            r"there: its encoder has layers=3 \(this run: 2\); use --config\.model\.layers=3, or adapt",
        ),
        ({"model__max_length": 32}, r"has max_length=32 \(this run: 16\).*--config\.init\.positions=first"),
        ({"model__width": 64}, r"has width=64 \(this run: 32\); use --config\.model\.width=64$"),
        ({"model__heads": 1}, r"has heads=1 \(this run: 2\)"),
        (
            {"model__embedding_size": 32, "model__ffn": 64},
            r"has ffn=64 \(this run: 32\), embedding_size=32 \(this run: 16\); use",
        ),
        ({"model__encoder": "modernbert"}, r"has encoder=modernbert \(this run: bert\)"),
    ],
    ids=str,
)
def test_other_shapes_are_refused_with_what_to_give(settings, message):
    o = tiny_models.system("electra")
    with pytest.raises(UserError, match=message):
        check(o, shaped(tiny_models.system("electra", **settings)))


@pytest.mark.parametrize("settings", [{"model__generator_width": 1.0}, {"model__generator_layers": 2.0}], ids=str)
def test_a_generator_of_another_shape_is_refused(settings):
    o = tiny_models.system("electra")
    with pytest.raises(UserError, match=r"its generator has .*; change config\.model\.generator_width and"):
        check(o, shaped(tiny_models.system("electra", **settings), "generator"))


@pytest.mark.parametrize(
    ("encoder", "name", "value", "other"),
    [
        ("modernbert", "local_window", 1, 2),
        ("modernbert", "global_every", 1, 2),
        ("deberta", "position_buckets", 6, 8),
        ("deberta", "max_relative_positions", 299, 298),
        ("deberta", "discriminator_head", "released", "linear"),
    ],
)
def test_an_encoder_of_other_windows_positions_or_another_head_is_refused(encoder, name, value, other):
    o, donor = (
        tiny_models.system("electra", model__encoder=encoder, **{f"model__{encoder}__{name}": each})
        for each in (value, other)
    )
    with pytest.raises(UserError, match=rf"has {encoder}\.{name}={other} \(this run: {value}\)"):
        check(o, shaped(donor))


def test_a_discriminators_head_does_not_matter_where_there_is_none():
    mlm, electra = (tiny_models.system(name, model__encoder="deberta") for name in ("mlm", "electra"))
    check(mlm, shaped(electra))


def test_two_towers_cannot_be_given():
    with pytest.raises(UserError, match="two towers"):
        check(tiny_models.system("electric"), shaped(tiny_models.system("electra"), "generator"))


def test_another_vocabulary_is_refused_or_its_rows_are_taken_by_their_pieces():
    o = tiny_models.system("electra")
    pieces = [f"piece {i}" for i in range(tiny_models.VOCABULARY)]
    pieces[5:8], pieces[10] = ["piece 7", "piece 6", "piece 5"], "unheard of"
    pieces[4], mask = "<mask>", 11
    them = [given(o, part, pieces=Pieces(pieces, special=(0, 1, 2, 3, mask))) for part in ("encoder", "generator")]
    with pytest.raises(UserError, match=r"a different vocabulary \(60 pieces, this run 60, 59 in both\)"):
        begin(o, *them)
    params, said = begin(o, *them, vocabulary="pieces")
    theirs, fresh = tiny_models.parameters(o, seed=1), tiny_models.parameters(o, seed=2)
    for path in (("embeddings", "word"), ("generator_head", "bias")):
        ours, old, new = (tree[path[0]][path[1]] for tree in (params, theirs, fresh))
        np.testing.assert_array_equal(ours[:8], old[[0, 1, 2, 3, mask, 7, 6, 5]])
        np.testing.assert_array_equal(ours[10], new[10])
        np.testing.assert_array_equal(ours[11:60], old[11:60])
    assert "59 of 60 pieces are in its vocabulary" in said[0]


def test_pieces_that_are_the_same_but_cut_otherwise_are_warned_of():
    o = tiny_models.system("electra")
    _, said = begin(o, given(o, pieces=Pieces((f"piece {i}" for i in range(60)), folds=False)))
    assert "warning: config.init_from=there has the same pieces as this run but splits text differently" in said[0]


@pytest.mark.parametrize("empty", [7, 9])
def test_ids_without_a_piece_are_no_piece(empty):
    o = tiny_models.system("electra")
    ours, theirs = (Pieces("" if i == none else f"piece {i}" for i in range(60)) for none in (7, empty))
    start = warm_start.WarmStart(WarmStartConfig(vocabulary="pieces"), o.model.config, ours, lambda text: None)
    word, old, new = (
        params["embeddings"]["word"]
        for params in (
            start.apply(tiny_models.parameters(o, seed=2), [given(o, pieces=theirs)]),
            *(tiny_models.parameters(o, seed) for seed in (1, 2)),
        )
    )
    random = [7, 9] if empty == 9 else []  # the same names are the same vocabulary
    np.testing.assert_array_equal(word[random], new[random])
    np.testing.assert_array_equal(np.delete(word, random, axis=0), np.delete(old, random, axis=0))


def test_one_network_for_both_is_the_encoders_or_else_the_generators():
    o = tiny_models.system("electra", "all")
    params, said = begin(o, given(o, "generator"))
    assert tiny_models.same(params["encoder"], tiny_models.parameters(o, seed=1)["encoder"])
    assert said[-1].endswith("; random: discriminator_head")
    params, said = begin(o, given(o, seed=1), given(o, "generator", seed=3))
    assert tiny_models.same(params["encoder"], tiny_models.parameters(o, seed=1)["encoder"])
    assert tiny_models.same(params["generator_head"], tiny_models.parameters(o, seed=3)["generator_head"])
    assert said[0].startswith("warning: the generator's layers differ from the encoder's (")


def test_a_network_without_a_tokenizer_must_have_as_many_pieces():
    o = tiny_models.system("electra")
    params, said = begin(o, given(o, pieces=None))
    assert tiny_models.same(params["embeddings"], tiny_models.parameters(o, seed=1)["embeddings"])
    assert "has no tokenizer: its 60 embeddings are assumed to be in this run's order" in said[0]
    there = given(o, pieces=None)
    config = dataclasses.replace(there.network.config, vocab_size=59)
    with pytest.raises(UserError, match="59 embeddings and no tokenizer, and this run has 60"):
        begin(o, dataclasses.replace(there, network=there.network._replace(config=config)))


def test_a_tokenizer_smaller_than_the_table_leaves_the_rest_of_it():
    """Released models have rows that no piece uses."""
    o = tiny_models.system("electra")
    there = given(o)
    config = dataclasses.replace(there.network.config, vocab_size=64)
    params, _ = begin(o, dataclasses.replace(there, network=there.network._replace(config=config)))
    assert tiny_models.same(params["embeddings"], tiny_models.parameters(o, seed=1)["embeddings"])


@pytest.mark.parametrize("length", [8, 32])
def test_positions_that_both_have(length):
    o = tiny_models.system("electra")
    other = tiny_models.system("electra", model__max_length=length)
    params, _ = begin(o, given(other), positions="first")
    position = params["embeddings"]["position"]
    both = min(length, 16)
    np.testing.assert_array_equal(position[:both], tiny_models.parameters(other, 1)["embeddings"]["position"][:both])
    np.testing.assert_array_equal(position[both:], tiny_models.parameters(o, 2)["embeddings"]["position"][both:])


@pytest.mark.parametrize(
    ("there", "here", "how", "expected"),
    [(4, 2, "first", [0, 1]), (4, 2, "spread", [0, 2]), (2, 4, "spread", [0, 0, 1, 1]), (2, 3, "first", [0, 1, None])],
)
def test_layers_are_the_first_or_spread(there, here, how, expected):
    o, other = (tiny_models.system("electra", model__layers=layers) for layers in (here, there))
    params, _ = begin(o, given(other), layers=how)
    kernel, old, new = (
        tree["encoder"]["layers"]["ffn_in"]["kernel"]
        for tree in (params, tiny_models.parameters(other, 1), tiny_models.parameters(o, 2))
    )
    for layer, source in enumerate(expected):
        np.testing.assert_array_equal(kernel[layer], new[layer] if source is None else old[source])
