"""A Hugging Face directory, written and read; and all that can be wrong with one."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_models
from safetensors.numpy import load_file, save_file

from electra_jax.config.errors import UserError
from electra_jax.data import vocabulary_training
from electra_jax.data.config import CorpusConfig
from electra_jax.loading.huggingface import directory, sentence_files

LINES = ["the model reads a line of text and says which word was replaced"] * 20


@pytest.fixture(scope="module")
def pieces():
    settings = {"vocab_size": 28, "normalization": "nmt_nfkc"}
    return vocabulary_training.train(LINES, CorpusConfig(**settings))


def written(place, pieces, network, head, dtype="float32"):
    directory.write(place, network, head, pieces, "# A card\n", dtype=dtype)
    return place


@pytest.fixture
def electra(tmp_path, pieces):
    return written(tmp_path / "electra", pieces, tiny_models.network(), "discriminator_head")


@pytest.fixture
def folded(tmp_path, pieces):
    return written(tmp_path / "folded", pieces, tiny_models.network("modernbert", "mlm_head"), "mlm_head")


def configure(place, **changes) -> None:
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({**config, **changes}))


def remove_tokenizer(place) -> None:
    for name in ("spiece.model", "tokenizer.json"):
        (place / name).unlink()


def refused(place, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        directory.read(place)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("kind", "head", "size"),
    [
        *((kind, "mlm_head", size) for kind in ("bert", "modernbert", "deberta") for size in (16, 32)),
        *((kind, "discriminator_head", 16) for kind in ("bert", "modernbert", "deberta", "linear")),
        *((kind, None, 32) for kind in ("bert", "modernbert", "deberta")),
    ],
)
def test_what_is_written_is_read(tmp_path, pieces, kind, head, size):
    network = tiny_models.network(kind, head, size)
    if kind == "modernbert":
        network.params["encoder"]["layers"]["attention_norm"]["scale"][0] = 1  # unused
    found = directory.read(written(tmp_path / "model", pieces, network, head))
    assert tiny_models.same(found.encoder.params, network.params)
    assert found.encoder.config.heads == network.config.heads
    assert found.encoder.config.embedding_size == size
    assert found.tokenizer.model == pieces.model
    assert found.notes == ()
    assert (tmp_path / "model" / "README.md").read_text() == "# A card\n"


def test_its_files_may_be_read_by_whom_others_may(electra, folded):
    for place in (electra, folded):
        assert len({path.stat().st_mode for path in place.iterdir()}) == 1


def test_arrays_in_any_order_of_memory_are_saved_as_they_are(tmp_path):
    matrix = np.arange(6.0).reshape(3, 2)
    directory.save_arrays({"columns": np.asfortranarray(matrix), "turned": matrix.T, "rows": matrix}, tmp_path / "x")
    read = load_file(tmp_path / "x")
    for name, value in {"columns": matrix, "turned": matrix.T, "rows": matrix}.items():
        np.testing.assert_array_equal(read[name], value)


def test_weights_in_several_files(electra):
    state = load_file(electra / "model.safetensors")
    whole = directory.read(electra).encoder.params
    names = sorted(state)
    parts = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    for file, of_it in parts.items():
        save_file({name: state[name] for name in of_it}, electra / file)
    weight_map = {name: file for file, of_it in parts.items() for name in of_it}
    (electra / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (electra / "model.safetensors").unlink()
    assert tiny_models.same(directory.read(electra).encoder.params, whole)
    before = directory.digest(electra)
    assert directory.digest(electra) == before
    first = names[0]
    save_file({name: state[name] + (name == first) for name in parts["a.safetensors"]}, electra / "a.safetensors")
    assert directory.digest(electra) != before


def test_weights_in_bfloat16_become_float32(electra):
    path = electra / "model.safetensors"
    state = {name: value.astype(jnp.bfloat16) for name, value in load_file(path).items()}
    save_file(state, path)
    found = directory.read(electra).encoder.params["embeddings"]["word"][: tiny_models.VOCABULARY]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, state["electra.embeddings.word_embeddings.weight"].astype(np.float32))


def test_a_directory_without_a_tokenizer(electra):
    remove_tokenizer(electra)
    assert directory.read(electra).tokenizer is None


def test_another_head_is_left_out_and_named(electra):
    path = electra / "model.safetensors"
    state = {name: value for name, value in load_file(path).items() if not name.startswith("discriminator")}
    save_file({**state, "classifier.out_proj.weight": np.zeros((2, 32), np.float32)}, path)
    found = directory.read(electra)
    assert found.encoder.config.heads == ()
    assert found.notes == ("tensors of another head were ignored: 1, the first classifier.out_proj.weight",)


@pytest.mark.parametrize("kind", ["bert", "modernbert", "deberta"])
def test_tensors_of_the_layers_are_not_left_out(tmp_path, pieces, kind):
    """A layer that config.json does not count; a part of a layer that it does not name; with and without a head."""
    name = {"bert": "electra.encoder.layer", "modernbert": "model.layers", "deberta": "deberta.encoder.layer"}[kind]
    for head, prefix in (("mlm_head", name), (None, name.partition(".")[2])):
        place = written(tmp_path / str(head), pieces, tiny_models.network(kind, embedding_size=32), head)
        state = load_file(place / "model.safetensors")
        for extra in (f"{prefix}.2.mlp.bias", f"{prefix}.0.conv.weight"):
            save_file({**state, extra: np.zeros(3, np.float32)}, place / "model.safetensors")
            refused(place, rf"has {extra}, which config\.json does not describe")


def test_a_model_that_is_refused_is_not_converted_first(tmp_path, pieces):
    place = written(tmp_path / "v2", pieces, tiny_models.network("deberta", embedding_size=32), "discriminator_head")
    (place / "model.safetensors").rename(place / "pytorch_model.bin")
    configure(place, conv_kernel_size=3)
    refused(place, "conv_kernel_size")


@pytest.mark.parametrize("kind", ["modernbert", "linear"])
def test_a_tagger_that_tells_other_things_apart_is_no_discriminator(tmp_path, pieces, kind):
    network = tiny_models.network(kind, embedding_size=32)
    place = written(tmp_path / "names", pieces, network, "discriminator_head")
    configure(place, id2label={"0": "other", "1": "name"})
    found = directory.read(place)
    assert found.encoder.config.heads == ()
    assert "tensors of another head were ignored" in found.notes[0]


def test_an_output_that_is_not_the_table(tmp_path, pieces):
    """ELECTRA's class ties them all the same; ModernBERT's may not."""
    for kind, name in (("bert", "generator_lm_head.weight"), ("modernbert", "decoder.weight")):
        place = written(tmp_path / kind, pieces, tiny_models.network(kind, "mlm_head", 32), "mlm_head")
        state = load_file(place / "model.safetensors")
        word = next(
            value for key, value in state.items() if key.endswith(("tok_embeddings.weight", "word_embeddings.weight"))
        )
        save_file({**state, name: word}, place / "model.safetensors")
        assert directory.read(place).notes == ()
        save_file({**state, name: word + 1}, place / "model.safetensors")
        if kind == "bert":
            assert "generator_lm_head.weight differs from the word embeddings" in directory.read(place).notes[0]
        else:
            refused(place, r"decoder\.weight differs from the word embeddings")


@pytest.mark.parametrize(("kind", "head"), [("bert", "discriminator_head"), ("modernbert", "mlm_head")])
def test_weights_in_float16_are_read_as_float32(tmp_path, pieces, kind, head):
    network = tiny_models.network(kind, head)
    place = written(tmp_path / "half", pieces, network, head, "float16")
    stored = load_file(place / "model.safetensors")
    assert {value.dtype for value in stored.values()} == {np.dtype("float16")}
    assert json.loads((place / "config.json").read_text())["dtype"] == "float32"
    read = jax.tree.leaves(directory.read(place).encoder.params)
    whole = directory.read(written(tmp_path / "whole", pieces, network, head)).encoder.params
    for half, value in zip(read, jax.tree.leaves(whole), strict=True):
        assert half.dtype == np.float32
        np.testing.assert_allclose(half, value, rtol=2**-11, atol=2**-25)  # half a unit in the last place of float16


def test_factors_beside_weights_that_others_stored_in_bfloat16(folded):
    state = {name: value.astype(jnp.bfloat16) for name, value in load_file(folded / "model.safetensors").items()}
    save_file(state, folded / "model.safetensors")
    assert directory.read(folded).encoder.config.embedding_size == 16


def test_weights_too_large_for_float16_are_refused(tmp_path, pieces):
    network = tiny_models.network()
    network.params["embeddings"]["word"][7, 0] = 65520.0  # the least that float16 rounds to infinity
    with pytest.raises(UserError, match=r"word_embeddings.weight is too large for float16; export in float32"):
        written(tmp_path / "half", pieces, network, "discriminator_head", "float16")
    assert not (tmp_path / "half").exists()


def test_a_tokenizer_that_is_refused_leaves_no_folder(tmp_path, pieces, monkeypatch):
    def refuse(*_):
        raise UserError("tokenizer.json cannot express it")

    monkeypatch.setattr(directory.tokenizer_files, "files", refuse)
    with pytest.raises(UserError, match="cannot express it"):
        written(tmp_path / "bert", pieces, tiny_models.network("bert"), "discriminator_head")
    assert not (tmp_path / "bert").exists()


def test_factors_of_a_table_that_was_trained_on_are_refused(folded):
    path = folded / "model.safetensors"
    state = load_file(path)
    state["model.embeddings.tok_embeddings.weight"][3] += 0.01
    save_file(state, path)
    refused(folded, r"embedding_factors.safetensors does not match .*tok_embeddings.weight in .*; export it again")
    (folded / "embedding_factors.safetensors").unlink()
    refused(folded, r"decoder\.weight differs from the word embeddings")


@pytest.mark.parametrize(
    "factors", [{}, {"embeddings/word": np.zeros(3)}, {"embeddings/word": np.zeros((60, 16))}], ids=len
)
def test_factors_that_are_none_are_refused(folded, factors):
    save_file({"other": np.zeros(1), **factors}, folded / "embedding_factors.safetensors")
    refused(folded, "is not a file of embedding factors; delete it|lacks the factor encoder/project/kernel")


@pytest.mark.parametrize("index", ["{}", '{"weight_map": [1]}', '{"weight_map": {"a": "b.safetensors"}}', "[", "null"])
def test_an_index_of_what_is_not_there(electra, index):
    (electra / "model.safetensors").unlink()
    (electra / "model.safetensors.index.json").write_text(index)
    refused(electra, "names files that do not exist|is not valid JSON|is not a JSON object")


def test_a_tokenizer_of_more_pieces_than_there_are_embeddings(electra):
    remove_tokenizer(electra)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{i}" for i in range(65))]
    (electra / "vocab.txt").write_text("\n".join(words) + "\n")
    refused(electra, "has a tokenizer of 70 pieces but embeddings for 60")


def test_scores_of_another_kind_are_told(tmp_path, pieces):
    place, meaning = tmp_path / "energies", "how unlikely it is"
    directory.write(place, tiny_models.network(), "discriminator_head", pieces, "", meaning)
    assert directory.read(place).notes == (f"the discriminator's score of a token is {meaning}",)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model.bin.index.json"])
def test_a_pickle_is_not_read(electra, name):
    shutil.move(electra / "model.safetensors", electra / name)
    refused(
        electra, r"pytorch_model\*\.bin, a pickle, which .* with PyTorch: python -c .*weights_only=True.*safetensors"
    )


def test_deberta_has_the_files_of_its_tokenizer(tmp_path, pieces):
    place = written(tmp_path / "v3", pieces, tiny_models.network("deberta"), "discriminator_head")
    assert (place / "spm.model").read_bytes() == pieces.model
    assert not (place / "spiece.model").exists()
    mask = pieces.special.mask
    (place / "added_tokens.json").write_text(json.dumps({"[MASK]": mask}))
    assert directory.read(place).tokenizer.model == pieces.model
    (place / "added_tokens.json").write_text(json.dumps({"[MASK]": 40}))
    refused(place, rf"has \[MASK\] as token 40, but in spm\.model it is {mask}; save its tokenizer")


def test_positions_that_training_never_saw_are_not_read(tmp_path, pieces):
    """The table keeps all its entries; rotary and relative positions need no training of each."""
    for kind, expected in (("bert", 8), ("modernbert", 16), ("deberta", 16)):
        network = tiny_models.network(kind)
        network = network._replace(config=dataclasses.replace(network.config, trained_length=8))
        place = written(tmp_path / kind, pieces, network, "discriminator_head")
        assert json.loads((place / "tokenizer_config.json").read_text())["model_max_length"] == expected
        config = directory.read(place).encoder.config
        assert (config.longest, config.max_length) == (expected, 16)


def test_a_sentence_transformers_model_cuts_texts_off_as_it_says(tmp_path, pieces):
    place = written(tmp_path / "model", pieces, tiny_models.network("modernbert"), "discriminator_head")
    for name, content in sentence_files.files(32, 8).items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(content)
    found = directory.read(place)
    assert (found.encoder.config.longest, found.notes) == (8, ())
    for other in ({"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}, {"pooling_mode": "cls"}):
        (place / "1_Pooling" / "config.json").write_text(json.dumps(other))
        assert "asks for other sentence vectors than the mean" in directory.read(place).notes[0]
    (place / "1_Pooling" / "config.json").write_text("{}")
    modules = json.loads((place / "modules.json").read_text())
    more = [*modules, {"idx": 2, "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}]
    (place / "modules.json").write_text(json.dumps(more))
    (place / "config_sentence_transformers.json").write_text('{"default_prompt_name": "query"}')
    assert directory.read(place).notes == (
        "modules.json has Normalize after the encoder, which `encode` leaves out",
        "config_sentence_transformers.json puts a prompt before each text, which `encode` leaves out",
    )


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "spiece.model", "model.safetensors"])
def test_a_digest_is_that_of_all_that_decides_what_is_computed(electra, name):
    before, path = directory.digest(electra), electra / name
    if name == "config.json":
        configure(electra, transformers_version="9")
        assert directory.digest(electra) == before
    content = {**json.loads(path.read_text()), "x": 1} if name.endswith(".json") else None
    path.write_bytes(json.dumps(content).encode() if content else path.read_bytes() + b"x")
    assert directory.digest(electra) != before


def test_a_directory_without_weights(electra):
    (electra / "model.safetensors").unlink()
    refused(electra, r"has no model\.safetensors; use a directory that save_pretrained")


@pytest.mark.parametrize("size", [0, 100, 5000])
def test_a_file_that_was_cut_off(electra, size):
    path = electra / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    refused(electra, r"model\.safetensors is damaged or not a safetensors file .*; download or export it again")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_tensors_that_are_no_numbers(electra, value):
    path = electra / "model.safetensors"
    state = load_file(path)
    state["discriminator_predictions.dense.bias"][2] = value
    save_file(state, path)
    refused(electra, r"discriminator_predictions\.dense\.bias has NaN or infinite values")


def test_a_checkpoint_that_is_not_finite_is_not_written(tmp_path, pieces):
    network = tiny_models.network()
    network.params["embeddings"]["word"][7] = np.nan
    with pytest.raises(UserError, match=r"the checkpoint: electra\.embeddings\.word_embeddings\.weight has NaN"):
        written(tmp_path / "model", pieces, network, "discriminator_head")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_a_config_that_is_none(electra, text):
    (electra / "config.json").write_text(text)
    refused(electra, r"config\.json (is not valid JSON|is not a JSON object)")


def test_a_config_of_another_size(electra):
    configure(electra, num_hidden_layers=4)
    refused(electra, r"lacks the tensor electra\.encoder\.layer\.3\.")
