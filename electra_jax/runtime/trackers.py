"""Experiment trackers, such as Weights & Biases. `metrics.jsonl` has the same numbers in any case.

A tracker that fails does not stop the run: it is reported in one line and not used from then on. Each library reads its
own environment variables: WANDB_PROJECT, WANDB_MODE, MLFLOW_TRACKING_URI, TRACKIO_SPACE_ID and so on.
"""

import abc
import json
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from electra_jax.config.errors import first_line
from electra_jax.config.settings import Check, flatten
from electra_jax.runtime.io import read_json, write_whole

# An event file, which `metric_writers` writes; the others are in `TRACKERS`.
TENSORBOARD = "tensorboard"
# The ids by which a restarted run is resumed in its trackers.
FILE = "trackers.json"
_PROJECT = "electra_jax"


class TrackedRun(NamedTuple):
    """A run to be tracked.

    Attributes:
      name: its name.
      folder: its work directory.
      config: its settings, nested.
    """

    name: str
    folder: Path
    config: Mapping[str, Any]


class Tracker(abc.ABC):
    """A run in a tracker.

    Attributes:
      id: the id by which a restart resumes it.
    """

    id: str

    @abc.abstractmethod
    def __init__(self, run: TrackedRun, id_: str | None):
        """Starts the run, or resumes the one with the id."""

    @abc.abstractmethod
    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Logs the finite numbers of a step."""

    @abc.abstractmethod
    def attach(self, files: Sequence[Path]) -> None:
        """Stores files with the run."""

    @abc.abstractmethod
    def close(self) -> None:
        """Ends the tracking of the run by this process."""


class Wandb(Tracker):
    """Weights & Biases. Without WANDB_MODE=offline it needs a login."""

    def __init__(self, run: TrackedRun, id_: str | None):
        import wandb

        mode = os.environ.get("WANDB_MODE", "online")
        # Without a login, W&B would ask for one on a terminal.
        if mode == "online" and not wandb.api.api_key:
            raise RuntimeError("not logged in: `wandb login`, or WANDB_MODE=offline")
        self.id = id_ or secrets.token_hex(4)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            id=self.id,
            name=run.name,
            resume="allow",
            config=dict(run.config),
            dir=run.folder,
            settings=wandb.Settings(silent=True),
        )
        # A resumed run may repeat steps, which W&B's own counter would refuse.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log({"step": step, **numbers})

    def attach(self, files: Sequence[Path]) -> None:
        import wandb

        artifact = wandb.Artifact(f"run-{self.id}", type="run")
        for path in files:
            artifact.add_file(str(path))
        self._run.log_artifact(artifact)

    def close(self) -> None:
        self._run.finish()


class Trackio(Tracker):
    """Trackio: a local dashboard, or a Hugging Face Space."""

    def __init__(self, run: TrackedRun, id_: str | None):
        import trackio

        # Trackio resumes a run by its name.
        self.id = id_ or f"{run.name}-{secrets.token_hex(4)}"
        config = {name: value for name, value in flatten(run.config).items() if value is not None}
        self._run = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", _PROJECT),
            name=self.id,
            resume="allow",
            config=config,
            embed=False,
        )

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=step)

    def attach(self, files: Sequence[Path]) -> None:
        import trackio

        for path in files:
            trackio.save(path)

    def close(self) -> None:
        self._run.finish()


class Mlflow(Tracker):
    """MLflow, through its client, which leaves the process's active run alone."""

    def __init__(self, run: TrackedRun, id_: str | None):
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = MlflowClient()
        if id_ is None:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT)
            experiment = self._client.get_experiment_by_name(name)
            experiment_id = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
            self.id = self._client.create_run(experiment_id, run_name=run.name).info.run_id
            params = [Param(name, str(value)) for name, value in flatten(run.config).items()]
            self._client.log_batch(self.id, params=params)
        else:
            self.id = id_
            self._client.update_run(self.id, status="RUNNING")

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        # MLflow's timestamps are in milliseconds.
        now = int(time.time() * 1000)
        self._client.log_batch(self.id, metrics=[Metric(name, value, now, step) for name, value in numbers.items()])

    def attach(self, files: Sequence[Path]) -> None:
        for path in files:
            self._client.log_artifact(self.id, str(path))

    def close(self) -> None:
        self._client.set_terminated(self.id)


TRACKERS: Mapping[str, type[Tracker]] = {"wandb": Wandb, "trackio": Trackio, "mlflow": Mlflow}
NAMES = (TENSORBOARD, *TRACKERS, "none")


def chosen(setting: str) -> list[str]:
    """Returns the names in `config.tracker`, without `none`."""
    return [name for name in setting.split(",") if name != "none"]


def _is_valid(setting: str) -> bool:
    names = setting.split(",")
    return {*names} <= {*NAMES} and len({*names}) == len(names) and ("none" not in names or len(names) == 1)


VALID = Check(_is_valid, f"{', '.join(NAMES[:-1])}, or several of these separated by commas, or none")


class Trackers:
    """The trackers of a run, other than TensorBoard."""

    def __init__(self, names: Sequence[str], run: TrackedRun, say: Callable[[str], None]):
        """Starts the run in each tracker, or resumes it; `say` is called about those that fail."""
        self._say = say
        self._running: dict[str, Tracker] = {}
        path = run.folder / FILE
        ids = read_json(path) if path.exists() else {}
        for name in names:
            if name in TRACKERS:
                try:
                    self._running[name] = TRACKERS[name](run, ids.get(name))
                except ImportError:
                    self._say(f"{name} is not installed, the run goes on without it: pip install 'electra_jax[{name}]'")
                except Exception as error:
                    self._report(name, error)
        started = {name: tracker.id for name, tracker in self._running.items()}
        # Ids of trackers that did not start now are kept for a later start.
        if {**ids, **started} != ids:
            write_whole(path, json.dumps({**ids, **started}, indent=2) + "\n")

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Logs the finite numbers of a step."""
        self._each(lambda tracker: tracker.write(step, numbers))

    def attach(self, files: Sequence[Path]) -> None:
        """Stores files with the run."""
        self._each(lambda tracker: tracker.attach(files))

    def close(self) -> None:
        self._each(lambda tracker: tracker.close())
        self._running.clear()

    def _each(self, call: Callable[[Tracker], None]) -> None:
        # A copy, because trackers that fail are removed meanwhile.
        for name, tracker in list(self._running.items()):
            try:
                call(tracker)
            except Exception as error:
                self._report(name, error)
                del self._running[name]

    def _report(self, name: str, error: Exception) -> None:
        self._say(f"{name} failed, the run goes on without it: {first_line(error)}")
