"""Uploads to the Hub and models from it, with a stand-in of the Hub that the test starts."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import hub_server
import numpy as np
import pytest
from cli_runs import ROOT, environment, quiet, small_config, sst2_files
from safetensors.numpy import load_file, save_file

import electra_jax
from electra_jax import models, train
from electra_jax.commands import finetune, push
from electra_jax.config import errors
from electra_jax.config.errors import UserError
from electra_jax.loading import hub, networks
from electra_jax.loading.huggingface import onnx_file

TEXTS = ["a line of text", "another"]


@pytest.fixture
def uploaded(monkeypatch):
    """What is uploaded: (repository, branch, message, private, files by path)."""
    found = []

    def upload(folder, repo, message, revision=None, private=False):
        files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        found.append((repo, revision, message, private, files))
        return f"commit-{len(found)}"

    monkeypatch.setattr(hub, "upload", upload)
    return found


def write(folder, files):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def test_a_run_is_a_repository_with_its_generator(small_run, uploaded, tmp_path):
    assert electra_jax.push(small_run, "me/mine", private=True) == ["commit-1"]
    ((repo, branch, message, private, files),) = uploaded
    assert (repo, branch, message, private) == ("me/mine", None, "last checkpoint", True)
    assert {"config.json", "model.safetensors", "README.md", "generator/config.json", "tokenizer.json"} <= set(files)
    assert not any(name.startswith("encoder/") for name in files)
    assert b"'me/mine'" in files["README.md"]
    assert b"'discriminator'" not in files["README.md"]
    write(tmp_path, files)
    ours, theirs = electra_jax.load(small_run), electra_jax.load(tmp_path)
    np.testing.assert_allclose(theirs.encode(TEXTS), ours.encode(TEXTS), rtol=1e-4, atol=1e-5)
    filled = [[word.token for word in model.fill("a [MASK]", top=2)[0]] for model in (ours, theirs)]
    assert filled[0] == filled[1]


def test_a_model_of_another_trainer_is_not_pushed(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}', encoding="utf-8")
    with pytest.raises(UserError, match=r"is a Hugging Face directory, not a run; upload it with: hf upload me/mine"):
        electra_jax.push(tmp_path, "me/mine", onnx=True)


def test_an_encoder_with_two_heads_is_one_repository(text_file, uploaded, tmp_path, light_steps):
    """Its root has the token head, which most tools read, and a folder has the discriminator."""
    config = small_config(text_file, arg="objective=electra_mlm", steps=2, eval_batches=1)
    train.train(config, tmp_path / "run", quiet())
    electra_jax.push(tmp_path / "run", "me/both")
    ((*_, files),) = uploaded
    write(tmp_path / "hub", files)
    assert json.loads(files["config.json"])["architectures"] == ["ModernBertForMaskedLM"]
    for name in ("discriminator", "generator"):
        assert f'snapshot_download("me/both") + "/{name}"' in files[f"{name}/README.md"].decode()
    electra_jax.export(tmp_path / "run", tmp_path / "out")
    run, *exported = (electra_jax.load(tmp_path / name) for name in ("run", "out", "hub"))
    for model in exported:
        assert set(model.encoder.config.heads) == {"discriminator_head", "mlm_head"}
        assert model.fill("a [MASK]") == run.fill("a [MASK]")
        assert model.detect("a line") == run.detect("a line")
    other = tmp_path / "hub" / "discriminator" / "model.safetensors"
    state = load_file(other)
    save_file({**state, "pooler.weight": state["classifier.weight"]}, other)
    notes = electra_jax.load(tmp_path / "hub").notes
    assert notes == ("tensors of another head were ignored: 1, the first pooler.weight",)
    next(value for name, value in state.items() if "Wqkv" in name)[:] += 1
    save_file(state, other)
    with pytest.raises(UserError, match="discriminator has another encoder than the directory beside it; export both"):
        electra_jax.load(tmp_path / "hub")


def test_every_checkpoint_is_a_branch_and_so_is_step_0(small_run, uploaded, capsys):
    assert errors.run(push.main, [f"--workdir={small_run}", "--repo=me/mine", "--every_checkpoint"]) == 0
    branches = [branch for _, branch, *_ in uploaded]
    steps = models.run_checkpoint.saved_steps(Path(small_run))
    assert branches == [None, "step-0", *(f"step-{step}" for step in steps)]
    weights = [files["model.safetensors"] for *_, files in uploaded]
    assert weights[0] == weights[-1]
    assert len(set(weights)) == len(weights) - 1
    assert capsys.readouterr().out.splitlines() == [f"commit-{i}" for i in range(1, len(weights) + 1)]


def test_branches_are_named_by_words(small_run, uploaded, capsys):
    arguments = [f"--workdir={small_run}", "--repo=me/mine", "--every_checkpoint", "--words=100e6"]
    assert errors.run(push.main, arguments) == 0
    assert [branch for _, branch, *_ in uploaded] == [None, "chck_50M", "chck_100M"]
    uploaded.clear()
    electra_jax.push(small_run, "me/mine", every_checkpoint=True, words=1.1e6)  # .55 and 1.1 millions
    assert [branch for _, branch, *_ in uploaded] == [None, "chck_1M"]
    assert errors.run(push.main, [f"--workdir={small_run}", "--repo=me/mine", "--words=100"]) == 2
    assert "words=100.0 is invalid: expected 0, or a number of words from 1e6" in capsys.readouterr().err
    assert errors.run(push.main, [f"--workdir={small_run}", "--repo=me/mine", "--words=1e6"]) == 2
    assert "words=1e+06 has no effect without every_checkpoint; give both or neither" in capsys.readouterr().err


def test_a_run_that_began_with_another_model_has_no_branch_for_step_0(small_run, uploaded, tmp_path):
    workdir = shutil.copytree(small_run, tmp_path / "run")
    config = json.loads((workdir / "config.json").read_text())
    (workdir / "config.json").write_text(json.dumps({**config, "init_from": "another"}))
    electra_jax.push(workdir, "me/mine", every_checkpoint=True)
    steps = models.run_checkpoint.saved_steps(workdir)
    assert [branch for _, branch, *_ in uploaded] == [None, *(f"step-{step}" for step in steps)]


def test_only_the_main_branch_gets_onnx_files(small_run, uploaded, monkeypatch):
    monkeypatch.setattr(onnx_file, "check_installed", lambda: None)
    monkeypatch.setattr(onnx_file, "write", lambda folder: (folder / "model.onnx").touch())
    assert errors.run(push.main, [f"--workdir={small_run}", "--repo=me/mine", "--every_checkpoint", "--onnx"]) == 0
    main, *steps = ([name for name in files if name.endswith(".onnx")] for *_, files in uploaded)
    assert sorted(main) == ["generator/model.onnx", "model.onnx"]
    assert not any(steps)


def test_cards_have_the_scores_of_fine_tunings_of_this_checkpoint(small_run, tmp_path):
    scores = {name: {"accuracy": value} for name, value in (("median", 78.0), ("lowest", 77.0), ("highest", 79.5))}
    finetuned, digest = tmp_path / "sst2", networks.find_source(small_run).digest
    finetuned.mkdir()
    (finetuned / "scores.json").write_text(
        json.dumps({"task": "sst2", "metric": "accuracy", **scores, "seeds": [{}, {}]})
    )
    recipe = {"optim": {"learning_rate": 5e-4}, "epochs": 3, "pooling": "mean", "examples": 16_000}
    (finetuned / "config.json").write_text(json.dumps({"weights": digest, **recipe}))
    electra_jax.export(small_run, tmp_path / "out", scores=finetuned)
    row = "| sst2 | accuracy | 78.0 | 77.0 to 79.5 | 2 | rate 0.0005, 3 epochs, pooling mean, 16,000 examples |"
    assert row in (tmp_path / "out" / "encoder" / "README.md").read_text()
    assert "| sst2 |" not in (tmp_path / "out" / "generator" / "README.md").read_text()
    for name in ("encoder", "generator"):
        printed = electra_jax.card(small_run, name, scores=finetuned)
        assert printed == (tmp_path / "out" / name / "README.md").read_text()
    (finetuned / "config.json").write_text(json.dumps({"weights": "another"}))
    with pytest.raises(UserError, match=r"sst2 was fine-tuned from other weights than .* at step .* has; fine-tune"):
        electra_jax.export(small_run, tmp_path / "other", scores=[finetuned])
    with pytest.raises(UserError, match=r"none has no scores.json: expected the work directory of a finished"):
        electra_jax.export(small_run, tmp_path / "other", scores=[tmp_path / "none"])
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
def test_step_0_has_the_parameters_that_a_run_begins_with(small_run):
    first = electra_jax.load(small_run, step=0)
    assert first.encoder.config == electra_jax.load(small_run).encoder.config
    again = electra_jax.load(small_run, step=0)
    np.testing.assert_array_equal(first.encode(TEXTS), again.encode(TEXTS))
    assert abs(first.encode(TEXTS) - electra_jax.load(small_run).encode(TEXTS)).max() > 0


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--repo=a/b"], "--workdir is missing; try --workdir=runs/tiny --repo=USER/NAME"),
        (["--workdir={run}"], "--repo is missing"),
        (["--workdir={run}", "--model=x", "--repo=a/b"], "--workdir and --model were both given"),
        (["--workdir={run}", "--repo=mine"], "--repo=mine is invalid: expected USER/NAME"),
    ],
)
def test_bad_arguments_are_one_line(argv, message, small_run, capsys):
    assert errors.run(push.main, [each.format(run=small_run) for each in argv]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("name", ["hf:mine", "hf:a/b/c", "hf:", "hf:@main"])
def test_names_that_the_hub_cannot_have(name):
    with pytest.raises(UserError, match="is invalid: expected USER/NAME"):
        electra_jax.load(name)


def command(hub_url, home, *arguments, token=hub_server.TOKEN):
    """A command of its own, for which the stand-in is the Hub."""
    own = {"HF_ENDPOINT": hub_url, "HF_HOME": str(home), "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_XET": "1"}
    own |= {"HF_TOKEN": token} if token else {}
    return subprocess.run(
        [sys.executable, "-m", "electra_jax", *map(str, arguments)],
        env={**environment(), **own},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow
def test_what_the_hub_refuses_is_one_line(small_run, tmp_path):
    """What it gives: the page of the Hub."""
    with hub_server.serve() as served:
        argv = ["push", f"--workdir={small_run}"]
        pushed = command(served.url, tmp_path / "a", *argv, "--repo=me/mine", "--every_checkpoint")
        assert pushed.returncode == 0, pushed.stderr
        assert pushed.stdout.splitlines()[0].startswith(f"{served.url}/me/mine/commit/")
        assert "step-0" in served.repos["me/mine"]
        assert served.messages[0] == "last checkpoint"
        missing = command(served.url, tmp_path / "b", "detect", "--model=hf:me/mine@step-9", "a", token="")
        assert missing.returncode == 2
        assert missing.stderr.startswith("error: hf:me/mine@step-9 cannot be downloaded (")
        assert missing.stderr.count("\n") == 1
        refused = command(served.url, tmp_path / "c", *argv, "--repo=me/other", token="wrong")
        assert refused.returncode == 2
        assert refused.stderr.startswith("error: me/other cannot be uploaded (")
        assert refused.stderr.count("\n") == 1
    gone = command(served.url, tmp_path / "d", "detect", "--model=hf:me/mine", "a", token="")
    assert gone.returncode == 2
    assert "hf:me/mine cannot be downloaded (" in gone.stderr


@pytest.mark.slow
def test_a_fine_tuned_model_there_and_back(small_run, tmp_path):
    config = f"--config={ROOT}/configs/glue.py:task=sst2,runlocal"
    argv = [config, f"--init_from={small_run}", f"--data_dir={sst2_files(tmp_path)}", f"--workdir={tmp_path}/out"]
    assert errors.run(finetune.main, [*argv, "--config.seeds=1"]) == 0
    (tmp_path / "in.txt").write_text("a fine film\na dull film\n")
    with hub_server.serve() as served:
        pushed = command(served.url, tmp_path / "a", "push", f"--model={tmp_path}/out", "--repo=me/sst2", "--private")
        assert pushed.returncode == 0, pushed.stderr
        assert served.private == {"me/sst2"}
        texts = f"--input={tmp_path}/in.txt"
        hidden = command(served.url, tmp_path / "b", "predict", "--model=hf:me/sst2", texts, token="")
        assert hidden.returncode == 2
        found = command(served.url, tmp_path / "b", "predict", "--model=hf:me/sst2", texts)
        here = command(served.url, tmp_path / "b", "predict", f"--model={tmp_path}/out", texts)
        assert found.returncode == 0, found.stderr
        exported = command(served.url, tmp_path / "b", "export", "--model=hf:me/sst2", f"--output={tmp_path}/exported")
        assert "ForSequenceClassification" in exported.stdout, exported.stderr
        assert [line[:40] for line in found.stdout.splitlines()] == [line[:40] for line in here.stdout.splitlines()]
