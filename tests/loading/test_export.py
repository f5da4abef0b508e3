"""A run goes out whole, and comes back with every bit; what cannot be leaves nothing behind."""

import contextlib
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
import tiny_models
from cli_runs import ROOT, quiet, small_config
from ml_collections import ConfigDict
from tokenizers import normalizers

import electra_jax
from electra_jax import __main__, train, train_config, train_setup
from electra_jax.config import config_file
from electra_jax.config.errors import UserError
from electra_jax.data import converted
from electra_jax.loading import export, warm_start
from electra_jax.loading.huggingface import hf_config
from electra_jax.loading.networks import load_networks
from electra_jax.loading.run_checkpoint import load_run_checkpoint
from electra_jax.modeling.modernbert import ModernBert
from electra_jax.modeling.subnetwork import extract, flatten_params
from electra_jax.runtime.progress import Progress

NAMES = {"discriminator", "generator", "encoder"}


def config_of(size: str, text: Path, arg: str = "", **overrides) -> ConfigDict:
    """Two steps, with a checkpoint of each; `tiny` as `small_run`, whose programs come from the cache."""
    if size == "tiny":
        return small_config(text, arg, **{"steps": 2, "eval_batches": 1, "checkpoint__every": 1, **overrides})
    config = config_file.load(ROOT / "configs" / f"{size}.py", f"runlocal,{arg}")
    data = {"data.input": str(text), "data.vocab_size": 40, "data.heldout_fraction": 0.1}
    often = {"steps": 2, "log_every": 1, "eval_every": 1, "checkpoint.every": 1, "checkpoint.keep_last": 9}
    config.model.unroll = "false"  # compiles faster
    config.update_from_flattened_dict({**data, **often, **{k.replace("__", "."): v for k, v in overrides.items()}})
    return config


def make_run(workdir: Path, text: Path, size: str = "small", arg: str = "", **overrides) -> Path:
    train.train(config_of(size, text, arg, **overrides), workdir, quiet())
    return workdir


@pytest.fixture(scope="module")
def workdir(small_run):
    """Of ModernBERT with a narrow generator."""
    return small_run


@pytest.fixture(scope="module")
def exported(workdir, tmp_path_factory):
    output = tmp_path_factory.mktemp("export") / "exported"
    assert set(export.export(workdir, output)) == NAMES
    return output


def parameters(workdir: Path, step: int | None = None):
    run = load_run_checkpoint(workdir, step)
    return run, jax.device_get(run.params)


def without_padding(network):
    """What is used of a network's parameters."""
    size, params = network.config.vocab_size, jax.tree.map(np.array, network.params)
    params["embeddings"]["word"][size:] = 0
    if "mlm_head" in params:
        params["mlm_head"]["bias"][size:] = 0
    if network.config.encoder.architecture == ModernBert():
        params["encoder"]["layers"]["attention_norm"]["scale"][0] = 1
    return params


def test_what_went_out_comes_back_with_every_bit(workdir, exported):
    run, params = parameters(workdir)
    found = load_networks(exported)
    for name, network in (("encoder", found.encoder), ("generator", found.generator)):
        before = extract(run.objective.model.config, params, name)
        assert tiny_models.same(without_padding(before), without_padding(network)), name
    assert found.tokenizer.model == run.tokenizer.model
    assert found.notes == ()


def test_a_run_in_bfloat16_answers_as_its_export(workdir, tmp_path):
    """Both compute in float32."""
    copy = shutil.copytree(workdir, tmp_path / "run")
    settings = json.loads((copy / "config.json").read_text())
    settings["model"]["dtype"] = "bfloat16"
    (copy / "config.json").write_text(json.dumps(settings))
    export.export(copy, tmp_path / "exported")
    of_run, of_export = (electra_jax.load(path) for path in (copy, tmp_path / "exported"))
    texts = ["the model reads a line of text"]
    np.testing.assert_array_equal(of_run.encode(texts), of_export.encode(texts))
    assert of_run.generator.config.encoder.dtype == np.float32


def test_a_run_that_begins_from_an_export_begins_with_its_parameters(workdir, exported, tmp_path, text_file):
    config = config_of("small" if "small" in workdir.name else "tiny", text_file, init_from=str(exported))
    with contextlib.ExitStack() as held:
        setup = train_setup.set_up(train_config.resolve(config), tmp_path / "next", Progress(), held)
    (run, before), after = parameters(workdir), jax.device_get(setup.state.params)
    for name in ("encoder", "generator"):
        a, b = (without_padding(extract(run.objective.model.config, p, name)) for p in (before, after))
        assert tiny_models.same(a, b)


def test_every_directory_is_complete(exported):
    for name in NAMES:
        there = {path.name for path in (exported / name).iterdir()}
        assert {"model.safetensors", "config.json", "README.md", "tokenizer.json", "tokenizer_config.json"} <= there
        described = json.loads((exported / name / "config.json").read_text())
        head = {"discriminator": "discriminator_head", "generator": "mlm_head", "encoder": None}[name]
        encoder = hf_config.read(described, head, name).encoder
        assert described["architectures"] == [hf_config.class_name(encoder, head)]


def test_an_encoder_with_wide_tables_goes_out_as_a_bert_and_comes_back(tmp_path, text_file, light_steps, capsys):
    workdir = make_run(tmp_path / "run", text_file, "base", "objective=mlm", model__embedding_size=64)
    output = tmp_path / "exported"
    assert __main__.main(["export", f"--workdir={workdir}", f"--output={output}", "--as=bert"]) == 0
    classes = [line.rpartition(": ")[2] for line in capsys.readouterr().out.splitlines()]
    assert classes == ["BertForMaskedLM", "BertModel"]
    assert "tags: [electra_jax, bert, " in (output / "encoder" / "README.md").read_text()
    of_run, of_export = electra_jax.load(workdir), electra_jax.load(output)
    np.testing.assert_array_equal(of_run.encode(["a line of text"]), of_export.encode(["a line of text"]))
    assert of_export.fill("a [MASK]") == of_run.fill("a [MASK]")


def test_another_encoder_is_not_written_as_a_bert(workdir, tmp_path):
    with pytest.raises(UserError, match="a modernbert encoder cannot be written as a BERT"):
        electra_jax.export(workdir, tmp_path / "out", as_bert=True)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_so_does_a_bert_with_a_narrow_table(tmp_path, text_file):
    workdir, output = make_run(tmp_path / "small", text_file), tmp_path / "exported"
    assert set(export.export(workdir, output)) == NAMES
    test_what_went_out_comes_back_with_every_bit(workdir, output)
    test_a_run_that_begins_from_an_export_begins_with_its_parameters(workdir, output, tmp_path, text_file)
    test_every_directory_is_complete(output)


def test_the_card_has_the_runs_numbers(workdir, exported):
    last = json.loads((workdir / "metrics.jsonl").read_text().splitlines()[-1])
    card = (exported / "discriminator" / "README.md").read_text()
    assert "| steps | 2 of 2, each" in card
    assert f"| mlm loss | {last['heldout_mlm_loss']:.4g} |" in card
    assert f"| training FLOPs | {last['total_flops']:.4g} (" in card
    assert f"accounting | {last['total_flops_paper']:.4g} |" in card
    assert "corpus.txt`: 2" in card  # documents
    assert "40 SentencePiece" in card


def test_a_held_out_line_that_tokenizer_json_would_read_otherwise(workdir, tmp_path, monkeypatch):
    other = converted.convert(load_run_checkpoint(workdir).tokenizer)
    other.normalizer = normalizers.Sequence([other.normalizer, normalizers.Replace("sentence", "line")])
    monkeypatch.setattr(export.converted, "convert", lambda _: other)
    with pytest.raises(UserError, match=r"tokenizer\.json would read text differently: '[a-z ]*sentence"):
        export.export(workdir, tmp_path / "exported")
    assert not (tmp_path / "exported").exists()


def test_an_earlier_checkpoint(workdir, tmp_path):
    export.export(workdir, tmp_path / "first", step=1)
    run, first = load_run_checkpoint(workdir, 1), load_networks(tmp_path / "first")
    params = jax.device_get(run.params)
    before = extract(run.objective.model.config, params, "encoder")
    assert tiny_models.same(without_padding(before), without_padding(first.encoder))
    assert "| steps | 1 of 2, each" in (tmp_path / "first" / "encoder" / "README.md").read_text()
    with pytest.raises(UserError, match=r"has no checkpoint of step 7; expected one of 1, 2"):
        export.export(workdir, tmp_path / "seventh", step=7)


def test_the_card_has_the_energy_of_devices_that_count_it(workdir):
    run = load_run_checkpoint(workdir, 1)
    counted = run._replace(metadata={"totals": {**run.metadata["totals"], "joules": 1.8e6}})
    assert ("energy of the devices", "0.5 kWh") in export._describe(counted, workdir).facts
    assert "energy of the devices" not in dict(export._describe(run, workdir).facts)


def test_a_mean_of_checkpoints(workdir, tmp_path):
    export.export(workdir, tmp_path / "mean", average=2)
    found = load_networks(tmp_path / "mean").encoder.params["embeddings"]["word"]
    first, second = (load_networks(workdir, step).encoder.params["embeddings"]["word"] for step in (1, 2))
    pieces = len(load_networks(workdir).tokenizer)
    np.testing.assert_allclose(found[:pieces], ((np.asarray(first) + second) / 2)[:pieces], rtol=1e-6)
    card = (tmp_path / "mean" / "encoder" / "README.md").read_text()
    assert "the mean of the checkpoints of steps 1, 2" in card
    assert "These weights were not evaluated." in card
    for step, average, count in ((None, 3, 2), (None, 0, 2), (1, 2, 1), (0, 2, 1)):
        with pytest.raises(UserError, match=f"average={average} is invalid: expected a number from 1 to {count}, the"):
            export.export(workdir, tmp_path / "none", step, average=average)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arg", "expected"),
    [
        ("objective=all_tokens_mlm", {"masked_lm", "generator", "encoder"}),
        ("generator=unigram", {"discriminator", "encoder"}),
        ("objective=electra_mlm", {"discriminator", "masked_lm", "generator", "encoder"}),
    ],
)
def test_every_system_has_what_it_has(arg, expected, tmp_path, text_file, light_steps):
    make_run(tmp_path / "run", text_file, arg=arg)
    assert set(export.export(tmp_path / "run", tmp_path / "out")) == expected
    assert load_networks(tmp_path / "out").encoder.config.heads


def test_an_encoder_for_sentence_transformers(workdir, exported, tmp_path):
    """tests/parity loads it there."""
    export.export(workdir, tmp_path / "out", sentence_transformers=True)
    folder = tmp_path / "out" / "encoder"
    more = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    more -= {path.relative_to(exported / "encoder") for path in (exported / "encoder").rglob("*")}
    assert set(map(str, more)) == {
        "modules.json",
        "config_sentence_transformers.json",
        "sentence_bert_config.json",
        "1_Pooling/config.json",
    }
    width = json.loads((folder / "config.json").read_text())["hidden_size"]
    pooling = json.loads((folder / "1_Pooling" / "config.json").read_text())
    assert pooling == {"word_embedding_dimension": width, "pooling_mode_mean_tokens": True}
    assert load_networks(tmp_path / "out").encoder.config == load_networks(exported).encoder.config


def test_an_encoder_of_the_first_layers_computes_their_states(workdir, tmp_path):
    export.export(workdir, tmp_path / "all")
    export.export(workdir, tmp_path / "one", layers=1)
    whole, first = (load_networks(tmp_path / name / "encoder").encoder for name in ("all", "one"))
    assert (whole.config.encoder.layers, first.config.encoder.layers) == (2, 1)
    flat = flatten_params(whole.params)
    for path, value in flatten_params(first.params).items():
        np.testing.assert_array_equal(value, flat[path][:1] if "/layers/" in path else flat[path])
    card = (tmp_path / "one" / "encoder" / "README.md").read_text()
    assert "| layers | the first 1 of 2 |" in card
    assert "These weights were not evaluated." in card
    assert "| mlm loss |" in (tmp_path / "all" / "encoder" / "README.md").read_text()
    assert load_networks(tmp_path / "one").encoder.config.encoder.layers == 2
    with pytest.raises(UserError, match="layers=3 is invalid: expected an integer from 1 to 2, the encoder's layers"):
        export.export(workdir, tmp_path / "three", layers=3)
    assert not (tmp_path / "three").exists()


def test_what_is_in_the_way_stays_as_it_is(workdir, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("mine", "file"):
        with pytest.raises(UserError, match="is not an empty directory; use another --output, or empty it"):
            export.export(workdir, tmp_path / name)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "file", "mine"]


def test_an_empty_directory_by_another_name(workdir, tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    export.export(workdir, tmp_path / "link")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    export.export(workdir, Path())
    for name in ("real", "here"):
        assert {path.name for path in (tmp_path / name).iterdir()} == NAMES


def test_not_among_the_checkpoints(workdir):
    before = sorted(workdir.rglob("*"))
    with pytest.raises(UserError, match="is inside the run's checkpoints"):
        export.export(workdir, workdir / "checkpoints" / "out")
    assert sorted(workdir.rglob("*")) == before


def test_a_run_that_goes_on_is_left_alone_and_so_are_files_beside_the_output(workdir, tmp_path):
    """What the run is writing is not there yet; its last line of metrics may be half of one."""
    copy = shutil.copytree(workdir, tmp_path / "run")
    writing = copy / "checkpoints" / "3.orbax-checkpoint-tmp"
    shutil.copytree(copy / "checkpoints" / "2", writing)
    with (copy / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "lo')
    before = sorted(copy.rglob("*"))
    (tmp_path / ".out.partial").mkdir()
    (tmp_path / ".out.partial" / "mine").write_text("mine")
    export.export(copy, tmp_path / "out")
    assert sorted(copy.rglob("*")) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.partial", "out", "run"]
    assert (tmp_path / ".out.partial" / "mine").read_text() == "mine"


def test_a_failure_leaves_nothing_behind(workdir, tmp_path, monkeypatch):
    written = []

    def fail(*arguments, **options):
        written.append(arguments)
        if len(written) == 2:
            raise OSError(28, "No space left on device", "out")
        return original(*arguments, **options)

    original = export.directory.write
    monkeypatch.setattr(export.directory, "write", fail)
    with pytest.raises(OSError, match="No space left"):
        export.export(workdir, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def resolved(**overrides):
    return train_config.resolve(small_config(**overrides))


def test_a_vocabulary_is_adopted_from_what_a_run_begins_from(workdir, exported):
    for place in (workdir, exported, exported / "discriminator"):
        config = resolved(init_from=str(place))
        file = Path(warm_start.vocabulary_of_donors(config))
        assert file.read_bytes() == (workdir / "vocab.model").read_bytes()
    assert warm_start.vocabulary_of_donors(resolved()) == ""
    assert warm_start.vocabulary_of_donors(resolved(init_from=str(workdir), init__vocabulary="pieces")) == ""


@pytest.mark.slow
def test_a_run_goes_on_where_what_it_began_from_is_gone(exported, tmp_path, text_file):
    copy = shutil.copytree(exported, tmp_path / "copy")
    make_run(tmp_path / "run", text_file, "tiny", init_from=str(copy))
    shutil.rmtree(copy)
    make_run(tmp_path / "run", text_file, "tiny", init_from=str(copy), steps=3)
    assert load_run_checkpoint(tmp_path / "run").step == 3


def test_what_cannot_be_begun_from_is_refused_before_anything_is_written(exported, tmp_path, text_file):
    for settings, message in (
        ({"init_from": str(tmp_path / "nowhere")}, "nowhere has no model: expected a run's work directory"),
        ({"generator_from": str(exported / "discriminator")}, "has no generator and no MLM head"),
        ({"init_from": str(exported), "model__layers": 4}, "use --config.model.layers=2, or adapt it"),
        ({"init__layers": "first"}, r"config\.init\.layers=first has no effect without config\.init_from"),
    ):
        with pytest.raises(UserError, match=message):
            make_run(tmp_path / "run", text_file, "tiny", **settings)
        assert not (tmp_path / "run").exists()


def test_a_generator_that_does_not_fit_is_left_out(exported):
    said: list[str] = []
    for arg, settings in (("objective=electric", {}), ("", {"model__generator_width": 1.0})):
        config = config_file.load(ROOT / "configs" / "tiny.py", f"runlocal,{arg}")
        config.update_from_flattened_dict(
            {"init_from": str(exported), **{k.replace("__", "."): v for k, v in settings.items()}}
        )
        assert [donor.part for donor in warm_start.load_donors(train_config.resolve(config), said.append)] == [
            "encoder"
        ]
        assert said.pop().startswith("not used: ")


def test_a_generator_that_nothing_is_loaded_for_takes_the_encoders_layers(exported):
    """Also where the directory has a generator: the setting says so."""
    config = config_file.load(ROOT / "configs" / "tiny.py", "runlocal")
    config.init_from, config.init.generator, config.model.generator_width = str(exported), "spread", 1.0
    encoder, generator = warm_start.load_donors(train_config.resolve(config), lambda text: None)
    assert (encoder.part, encoder.layers) == ("encoder", "same")
    assert (generator.part, generator.layers) == ("generator", "spread")
    assert generator.network is encoder.network
    config.model.generator_width = 0.5
    with pytest.raises(UserError, match=r"its encoder has width=.*; set config\.model\.generator_width=1"):
        warm_start.load_donors(train_config.resolve(config), lambda text: None)


def test_no_run_begins_from_what_its_system_has_no_use_for(exported):
    with pytest.raises(UserError, match="objective=two_stage, whose encoder starts from its generator"):
        train_config.resolve(small_config(arg="objective=two_stage", init_from=str(exported)))
