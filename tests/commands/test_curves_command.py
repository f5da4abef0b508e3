import json
import xml.etree.ElementTree as ElementTree

import fake_runs
import pytest

from electra_jax.commands import curves as curves_command
from electra_jax.config import errors
from electra_jax.downstream import curves as points
from electra_jax.loading.networks import Source


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Two runs with checkpoints of steps 20 and 40. To Matplotlib both names mean something."""
    monkeypatch.setattr(points.run_checkpoint, "saved_steps", lambda workdir: [20, 40])
    return [fake_runs.write(tmp_path / name) for name in ("_one", r"x$\two$")]


@pytest.fixture
def asked(monkeypatch):
    """The fine-tunings that were asked for; each scores its seed, plus 10 for RTE."""
    calls = []

    def finetune(config, source, data_dir, workdir, *, strict, tests, progress):
        assert strict
        assert not tests
        calls.append((source.name, data_dir, workdir, config.epochs))
        metric = {"cola": "matthews", "rte": "accuracy"}[config.task.name]
        scores = [{"seed": seed, "scores": {metric: seed + 10.0 * (metric == "accuracy")}} for seed in range(3)]
        return {"metric": metric, "seeds": scores}

    monkeypatch.setattr(points.finetuning, "finetune_source", finetune)
    found = lambda workdir, step: Source(f"{workdir.name} at step {step}", f"{workdir.name}{step}", dict)  # noqa: E731
    monkeypatch.setattr(points.networks, "find_source", found)
    return calls


@pytest.fixture
def glue(tmp_path):
    """A folder with the files of two tasks."""
    for task in ("CoLA", "RTE"):
        (tmp_path / "glue" / task).mkdir(parents=True)
        for split in ("train", "dev"):
            (tmp_path / "glue" / task / f"{split}.tsv").touch()
    return tmp_path / "glue"


def command(runs, glue, output, *more):
    return ["--runs", *map(str, runs), "--tasks", "cola,rte", f"--data_dir={glue}", f"--output={output}", *more]


def test_tables_and_pictures(asked, folders, glue, tmp_path, capsys):
    out = tmp_path / "out"
    assert errors.run(curves_command.main, command(folders, glue, out, "--config.epochs=2")) == 0
    assert [call[0] for call in asked] == [
        f"{run.name} at step {step}" for run in folders for step in (20, 40) for _ in range(2)
    ]
    assert asked[1][1:] == (str(glue / "RTE"), out / "points" / "_one20" / "rte", 2)
    rows = [json.loads(line) for line in (out / "curves.jsonl").read_text().splitlines()]
    assert len(rows) == 2 * 2 * 2 * 3
    assert rows[0] == {
        "run": "_one",
        "objective": "electra",
        "step": 20,
        "weights": "_one20",
        "flops": 1.5e10 * 20,
        "flops_paper": 1.8e10 * 20,
        "tokens": 512 * 20,
        "task": "cola",
        "metric": "matthews",
        "seed": 0,
        "score": 0.0,
    }
    table = (out / "curves.md").read_text()
    assert table in capsys.readouterr().out
    assert "| _one | 20 | 300G | 6.0 (5.0 to 7.0) | 1.0 (0.0 to 2.0) | 11.0 (10.0 to 12.0) |" in table
    for name in ("scores", "average", "heldout"):
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        words = [text.strip() for text in ElementTree.parse(out / f"{name}.svg").getroot().itertext()]
        assert {folder.name for folder in folders} <= {*words}
        text = " ".join(words)
        assert "pre-training FLOPs" in text
        assert ("ELECTRA-Base" in text) == (name == "average")
    held_out = [json.loads(line) for line in (out / "heldout.jsonl").read_text().splitlines()]
    expected = [(folder.name, step) for folder in folders for step in (20, 40)]
    assert [(each["run"], each["step"]) for each in held_out] == expected
    assert held_out[0]["heldout_disc_loss"] == fake_runs.line(20)["heldout_disc_loss"]


@pytest.mark.slow
def test_the_other_accounting_and_no_paper(asked, folders, glue, tmp_path):
    out = tmp_path / "out"
    assert errors.run(curves_command.main, command(folders[:1], glue, out)) == 0
    assert (out / "average.png").exists()
    others = ["--accounting=paper", "--paper=false", "--points=1"]
    assert errors.run(curves_command.main, command(folders[:1], glue, out, *others)) == 0
    assert not (out / "average.png").exists()  # of the first call
    assert "| _one | 40 | 720G |" in (out / "curves.md").read_text()
    text = " ".join(ElementTree.parse(out / "scores.svg").getroot().itertext())
    assert "as the paper counts them" in text


@pytest.mark.parametrize("name", ["scores.png", "average.svg", "curves.md", "curves.jsonl"])
def test_files_that_it_did_not_write_are_left(asked, folders, glue, tmp_path, name, capsys):
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text("mine")
    assert errors.run(curves_command.main, command(folders[:1], glue, out)) == 2
    assert f"{out} has a {name} that `electra-jax curves` did not write; use another" in capsys.readouterr().err
    assert [(path.name, path.read_text()) for path in out.iterdir()] == [(name, "mine")]
    assert not asked


GIVEN = ["--runs=x", "--output=z"]
COLA = [*GIVEN, "--tasks=cola", "--data_dir=y"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--runs=", "--tasks=cola"], "--runs is missing; try --runs runs/tiny"),
        ([*GIVEN, "--tasks=cola"], "--data_dir is missing; try --runs runs/tiny"),
        ([*GIVEN, "--tasks=colla", "--data_dir=y"], "--tasks=colla is unknown; did you mean cola?"),
        ([*COLA, "--config.epoch=1"], "config.epochs?"),
        (COLA, "y/CoLA is not a folder: expected one with"),
        ([*GIVEN, "--tasks=cola", "--data_dir=tfds:glue"], "x does not exist: expected the work directory"),
        ([*COLA, "--config.task.name=rte"], "name tasks with --tasks"),
        ([*COLA, "--accounting=all"], "expected model or paper"),
    ],
)
def test_a_mistake_is_one_line(argv, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert errors.run(curves_command.main, argv) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "z").exists()
