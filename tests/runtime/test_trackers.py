"""What trackers get, what happens when one fails, and the real ones without a network."""

import json
import time
from pathlib import Path

import pytest
from cli_runs import logged, small_config, train_arguments

from electra_jax import train_config
from electra_jax.commands import train as train_command
from electra_jax.config import errors
from electra_jax.runtime import trackers
from electra_jax.runtime.trackers import TrackedRun, Tracker, Trackers


class Fake(Tracker):
    """Remembers all that it was told."""

    told: list[tuple] = []
    fails_in = ""

    def __init__(self, run, id_):
        self._tell("begin", run.name, id_)
        self.id = id_ or "new"

    def _tell(self, *what):
        if what[0] == self.fails_in:
            raise ConnectionError("no route\nto the host")
        self.told.append(what)

    def write(self, step, numbers):
        self._tell("write", step, dict(numbers))

    def attach(self, files):
        self._tell("attach", [path.name for path in files], [path.read_text() for path in files])

    def close(self):
        self._tell("close")


@pytest.fixture
def fake(monkeypatch):
    kind = type("Fresh", (Fake,), {"told": []})
    monkeypatch.setattr(trackers, "TRACKERS", {"wandb": kind})
    return kind


@pytest.fixture
def run(tmp_path):
    return TrackedRun("tiny", tmp_path, {"steps": 3, "optim": {"learning_rate": 0.1}, "data": {"input": "a.txt"}})


@pytest.mark.slow
def test_a_run_and_its_resumption_are_one(fake, text_file, tmp_path, light_steps):
    arguments = train_arguments(text_file, tmp_path / "run", "--tracker=wandb,tensorboard", arg="objective=mlm")
    assert errors.run(train_command.main, [*arguments, "--config.steps=2"]) == 0
    begin, *writes, attach, close, again, results, end = fake.told
    assert begin == ("begin", "run", None)
    lines = logged(tmp_path / "run")
    for line, (what, step, numbers) in zip(lines, writes, strict=True):
        assert what == "write"
        assert {"step": step, **numbers} == {name: value for name, value in line.items() if value is not None}
    assert attach[1] == ["config.json", "environment.json", "metrics.jsonl"]
    assert (close, end) == (("close",), ("close",))
    assert again == ("begin", "run", "new")
    assert results[1] == ["final.csv", "report.html"]
    table = dict(line.split(",") for line in results[2][0].splitlines())
    assert float(table["heldout_mlm_loss"]) == pytest.approx(lines[-1]["heldout_mlm_loss"])
    assert float(table["total_flops"]) == lines[-1]["total_flops"]
    assert "<html" in results[2][1]
    assert list((tmp_path / "run" / "tensorboard").iterdir())
    fake.told.clear()
    assert errors.run(train_command.main, [*arguments, "--config.steps=3"]) == 0
    assert fake.told[0] == ("begin", "run", "new")
    assert [what[1] for what in fake.told if what[0] == "write"] == [3]


def test_without_trackers(fake, text_file, tmp_path, light_steps):
    settings = ("--tracker=none", "--config.steps=1")
    arguments = train_arguments(text_file, tmp_path / "run", *settings, arg="objective=mlm")
    assert errors.run(train_command.main, arguments) == 0
    assert fake.told == []
    assert not (tmp_path / "run" / "tensorboard").exists()
    assert not (tmp_path / "run" / trackers.FILE).exists()


@pytest.mark.parametrize("call", ["begin", "write", "attach", "close"])
def test_a_tracker_that_fails_is_left_out_and_the_others_go_on(call, monkeypatch, run):
    good, bad = (type("Fresh", (Fake,), {"told": [], "fails_in": where}) for where in ("", call))
    monkeypatch.setattr(trackers, "TRACKERS", {"wandb": bad, "mlflow": good})
    said = []
    both = Trackers(["wandb", "mlflow"], run, said.append)
    both.write(1, {"loss": 2.0})
    both.write(2, {"loss": 1.0})
    both.attach([])
    both.close()
    assert said == ["wandb failed, the run goes on without it: no route"]
    assert [what[0] for what in good.told] == ["begin", "write", "write", "attach", "close"]
    assert len(bad.told) < 4 + (call == "close")


def test_a_tracker_that_is_not_installed(monkeypatch, run):
    def missing(run, id_):
        raise ImportError("No module named wandb")

    monkeypatch.setattr(trackers, "TRACKERS", {"wandb": missing})
    said = []
    Trackers(["wandb"], run, said.append).write(1, {"loss": 1.0})
    assert said == ["wandb is not installed, the run goes on without it: pip install 'electra_jax[wandb]'"]
    assert not (run.folder / trackers.FILE).exists()


@pytest.mark.parametrize("value", ["wandb", "tensorboard,mlflow", "none"])
def test_valid_settings(value):
    assert train_config.resolve(small_config(tracker=value)).tracker == value


@pytest.mark.parametrize("value", ["", "wand", "none,wandb", "wandb, mlflow", "wandb,mlflow,wandb"])
def test_invalid_settings(value):
    with pytest.raises(errors.UserError, match=rf"config\.tracker={value!r} is invalid: expected tensorboard, wandb, "):
        train_config.resolve(small_config(tracker=value))


def in_turns(run):
    """Three steps, of which the second is logged twice, in two starts; what was said, and the ids."""
    said = []
    for steps in ((1, 2), (2, 3)):
        started = Trackers(["wandb", "trackio", "mlflow"], run, said.append)
        for step in steps:
            started.write(step, {"loss": 10.0 - step, "heldout_mlm_loss": 5.0})
        started.attach([run.folder / "config.json"])
        started.close()
    assert said == []
    return json.loads((run.folder / trackers.FILE).read_text())


@pytest.fixture
def alone(monkeypatch, run, tmp_path):
    """Only one of the real trackers, with its files in a temporary folder."""

    def choose(name, **environment):
        monkeypatch.setattr(trackers, "TRACKERS", {name: trackers.TRACKERS[name]})
        for variable, value in environment.items():
            monkeypatch.setenv(variable, value)
        monkeypatch.chdir(tmp_path)  # MLflow keeps artifacts in the current folder
        (tmp_path / "config.json").write_text("{}")

    return choose


def test_wandb_offline(alone, run):
    pytest.importorskip("wandb", reason="the tracker is not installed: pip install 'electra_jax[wandb]'")
    alone("wandb", WANDB_MODE="offline", WANDB_SILENT="true")
    ids = in_turns(run)
    files = sorted(Path(run.folder, "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 2
    assert {path.stem for path in files} == {f"run-{ids['wandb']}"}
    for path in files:  # records of protobuf, which has strings as they are
        words = {b"heldout_mlm_loss", b"learning_rate", b"config.json", b"electra_jax"}
        deadline = time.monotonic() + 20
        while missing := [word for word in words if word not in path.read_bytes()]:
            assert time.monotonic() < deadline, missing
            time.sleep(0.05)  # W&B 0.31 returns from `finish` while its own process still writes


def test_wandb_without_a_login(alone, run, monkeypatch, tmp_path):
    pytest.importorskip("wandb", reason="the tracker is not installed: pip install 'electra_jax[wandb]'")
    alone("wandb", WANDB_MODE="online", HOME=str(tmp_path), NETRC=str(tmp_path / "netrc"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    said = []
    Trackers(["wandb"], run, said.append).write(1, {"loss": 1.0})
    assert said == ["wandb failed, the run goes on without it: not logged in: `wandb login`, or WANDB_MODE=offline"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of SQLAlchemy, about MLflow's queries
def test_mlflow_on_a_local_database(alone, run, tmp_path):
    mlflow = pytest.importorskip("mlflow", reason="the tracker is not installed: pip install 'electra_jax[mlflow]'")
    alone("mlflow", MLFLOW_TRACKING_URI=f"sqlite:///{tmp_path}/runs.db")
    ids = in_turns(run)
    found = mlflow.MlflowClient().get_run(ids["mlflow"])
    assert found.data.params == {"steps": "3", "optim.learning_rate": "0.1", "data.input": "a.txt"}
    history = mlflow.MlflowClient().get_metric_history(ids["mlflow"], "loss")
    assert sorted((each.step, each.value) for each in history) == [(1, 9.0), (2, 8.0), (2, 8.0), (3, 7.0)]
    assert (found.info.run_name, found.info.status) == ("tiny", "FINISHED")
    assert [each.path for each in mlflow.MlflowClient().list_artifacts(ids["mlflow"])] == ["config.json"]


def test_trackio_in_a_local_folder(alone, run, tmp_path):
    alone("trackio", TRACKIO_DIR=str(tmp_path / "trackio"))  # which Trackio reads when it is imported
    pytest.importorskip("trackio", reason="the tracker is not installed: pip install 'electra_jax[trackio]'")
    ids = in_turns(run)
    from trackio.sqlite_storage import SQLiteStorage

    logs = SQLiteStorage.get_logs("electra_jax", ids["trackio"])
    assert [(each["step"], each["loss"]) for each in logs] == [(1, 9.0), (2, 8.0), (2, 8.0), (3, 7.0)]
    config = SQLiteStorage.get_run_config("electra_jax", ids["trackio"])
    assert {name: config[name] for name in ("steps", "optim.learning_rate", "data.input")} == {
        "steps": 3,
        "optim.learning_rate": 0.1,
        "data.input": "a.txt",
    }
    assert [path.name for path in (tmp_path / "trackio").rglob("config.json")] == ["config.json"]
