"""Logs a run's metrics with its totals: tokens, FLOPs in both accountings, device-seconds, goodput."""

import math
from collections.abc import Callable

import jax

from electra_jax import metrics, train_config
from electra_jax.config.errors import UserError
from electra_jax.flops import devices
from electra_jax.flops.totals import count_flops
from electra_jax.runtime import distributed, energy, goodput, metric_writers, run_log, trackers
from electra_jax.runtime.metric_text import format_heldout, format_logged
from electra_jax.runtime.progress import Progress
from electra_jax.runtime.run_log import HELDOUT, METRICS
from electra_jax.runtime.trackers import TrackedRun, Trackers
from electra_jax.runtime.workdir import WorkDir
from electra_jax.step import ShardedStep
from electra_jax.train_config import TrainConfig


class MetricLog:
    """Log of a run's metrics in metrics.jsonl, the trackers and the progress listener.

    Attributes:
      totals: each of `metrics.TOTALS`; `joules` is NaN where devices have no counter of energy.
    """

    def __init__(
        self,
        run: ShardedStep,
        home: WorkDir,
        first: int,
        totals: dict[str, float],
        epochs: Callable[[int], float],
        progress: Progress,
        clock: goodput.Clock,
    ):
        """Opens the logs of a run and adds the time of its earlier starts to `clock`.

        Args:
          run: the train step.
          home: the work directory.
          first: the number of steps done.
          totals: the totals in the checkpoint of that step, with its `goodput.Clock.totals`; zeros if there is none.
          epochs: steps -> the number of epochs over the training text.
          progress: receives what is logged.
          clock: the clock of this start.
        """
        # The other totals of a checkpoint are the clock's. Those of earlier versions have no joules.
        known = {"joules": math.nan, **totals}
        self.totals = {name: known[name] for name in metrics.TOTALS}
        self._meter = energy.Meter()
        self._run, self._epochs, self._progress, self._clock = run, epochs, progress, clock
        self._folder, self._logged = home.folder, first
        self._peak = devices.peak(jax.devices()[0].device_kind, run.config.model.dtype)
        self._writer: metric_writers.MetricsWriter | None = None
        self._trackers: Trackers | None = None
        if distributed.is_main_process():
            # Before the writer removes what a killed process logged after the checkpoint: that time was lost.
            last = run_log.read_metrics(home.folder)[-1:]
            clock.add_earlier(goodput.time_of_earlier_starts(totals, last[0] if last else {}))
            names = trackers.chosen(run.config.tracker)
            self._writer = metric_writers.MetricsWriter(home.folder, first, trackers.TENSORBOARD in names)
            self._trackers = start_trackers(run.config, home, progress)

    def flops(self, steps: int) -> dict[str, float]:
        """Returns the FLOPs of the first `steps` steps, by accounting."""
        return count_flops(self._run.segments, steps, self._run.config.optim.name)

    def write(self, step: int, measured: dict[str, float], heldout: dict[str, float], found: dict[str, float]) -> None:
        """Logs what was `measured` in the steps since the last call, and the numbers that hooks have `found`.

        Raises:
          UserError: a hook returned a name that the run logs itself.
        """
        spent, count = self._clock.lap(), jax.device_count()
        steps, self._logged = step - self._logged, step
        # Training time: throughput and MFU leave out evaluating, saving and so on.
        seconds = spent["step"] + spent["data"]
        all_seconds = self._clock.seconds()
        self.totals["tokens"] += measured["tokens"]
        self.totals["device_seconds"] += seconds * count
        self.totals["skipped_steps"] += measured["skipped_steps"]
        self.totals["joules"] += self._meter.lap() * jax.process_count()
        total, before = self.flops(step), self.flops(step - steps)
        # A difference of totals, because a window may span segments whose steps cost differently.
        mean = {name: (total[name] - before[name]) / steps for name in total}
        values: dict[str, float | None] = {
            **measured,
            "tokens_per_second": measured["tokens"] / seconds,
            "flops": mean["model"],
            "flops_paper": mean["paper"],
            "total_flops": total["model"],
            "total_flops_paper": total["paper"],
            "total_tokens": self.totals["tokens"],
            "total_skipped_steps": self.totals["skipped_steps"],
            "device_seconds": self.totals["device_seconds"],
            "joules": self.totals["joules"],
            "mfu": mean["model"] * steps / seconds / (self._peak * count) if self._peak else None,
            "loader_wait": spent["data"] / seconds,
            "goodput": goodput.goodput(all_seconds),
            **{f"seconds_{name}": value for name, value in spent.items()},
            **{f"total_seconds_{name}": value for name, value in all_seconds.items()},
            "epoch": self._epochs(step),
            **{f"{HELDOUT}{name}": value for name, value in heldout.items() if name != "tokens"},
        }
        # All processes have the names in `found`, so all of them stop here.
        # Also in a step without an evaluation: a later one may have one, and a reader would take this for one.
        if taken := [name for name in found if name in {"step", *values} or name.startswith(HELDOUT)]:
            raise UserError(f"a hook returned {min(taken)!r}, which the run logs itself; choose another name")
        values |= found
        if self._writer is not None and self._trackers is not None:
            self._writer.write(step, values)
            self._trackers.write(step, metric_writers.finite_numbers(values))
        losses = self._run.objective.system.losses
        self._progress.update(step, format_logged(values, losses))
        if heldout:
            self._progress.say(f"step {step} held out: {format_heldout(heldout, losses)}")
        if found:
            numbers = ", ".join(f"{name} {value:.4g}" for name, value in found.items())
            self._progress.say(f"step {step} hooks: {numbers}")

    def close(self) -> None:
        if self._writer is not None and self._trackers is not None:
            self._writer.close()
            self._trackers.attach([path for path in (self._folder / name for name in _ATTACHED) if path.is_file()])
            self._trackers.close()


_ATTACHED = ("config.json", "environment.json", METRICS)


def start_trackers(config: TrainConfig, home: WorkDir, progress: Progress) -> Trackers:
    """Starts the run in its trackers, or resumes it there."""
    run = TrackedRun(home.path.name, home.folder, train_config.to_dict(config))
    return Trackers(trackers.chosen(config.tracker), run, progress.say)
