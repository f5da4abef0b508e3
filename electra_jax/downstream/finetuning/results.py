"""Work directory of a fine-tuning: its config, each seed's result, answers and the summary.

config.json       settings and data digests, so that seeds of two fine-tunings are never mixed
seeds/N.json      scores and losses of a finished seed
answers/seed-N/   its answers for each split
models/seed-N/    its fine-tuned model, if it is kept: that of the best seed, or of all
scores.json       summary over the seeds
"""

import dataclasses
import json
import shutil
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from electra_jax.config.errors import UserError
from electra_jax.config.settings import differences
from electra_jax.downstream.finetuning import recipe
from electra_jax.downstream.tasks.task import Task
from electra_jax.runtime.io import read_json, write_whole

SCORES, CONFIG = "scores.json", "config.json"
# Weights and files are identified by their digests, so their paths may change.
_MAY_CHANGE = {*recipe.RESUMABLE, "init_from", "data_dir"}
_REPLACED = (SCORES, "answers", "models")  # what a fine-tuning replaces, and deletes in part


@dataclasses.dataclass(frozen=True)
class Results:
    """Files of a fine-tuning.

    Attributes:
      workdir: the folder.
    """

    workdir: Path

    @property
    def seeds_dir(self) -> Path:
        return self.workdir / "seeds"

    def answers_dir(self, seed: int) -> Path:
        return self.workdir / "answers" / f"seed-{seed}"

    def model_dir(self, seed: int) -> Path:
        return self.workdir / "models" / f"seed-{seed}"

    def best(self, task: Task, seeds: Iterable[int]) -> int | None:
        """Returns the finished seed with the highest main score, the first if equal; None if no seed is finished."""
        scores = {seed: self.read_seed(seed)["scores"][task.main_metric] for seed in self.finished(seeds)}
        return max(scores, key=lambda seed: scores[seed], default=None)

    def drop_models(self, keep: int | None) -> None:
        """Deletes the models of all seeds but `keep`."""
        # Partial models begin with a dot, so the pattern does not match them.
        for folder in (self.workdir / "models").glob("seed-*"):
            if keep is None or folder != self.model_dir(keep):
                shutil.rmtree(folder)

    def drop_partial_models(self) -> None:
        """Deletes partial models of a call that was killed while it wrote them; see `new_folder`."""
        for folder in (self.workdir / "models").glob(".seed-*.partial"):
            shutil.rmtree(folder)

    def finished(self, seeds: Iterable[int]) -> list[int]:
        """Returns the seeds that are finished."""
        return [seed for seed in seeds if self._seed_path(seed).exists()]

    def missing(self, seeds: Iterable[int]) -> list[int]:
        """Returns the seeds that are not finished."""
        return [seed for seed in seeds if not self._seed_path(seed).exists()]

    def check_same(self, identity: Mapping[str, Any]) -> None:
        """Raises UserError if the folder holds another fine-tuning, or something else.

        Args:
          identity: the content of config.json to be written.
        """
        path = self.workdir / CONFIG
        any_seed = any(self.seeds_dir.glob("*.json"))
        before = read_json(path) if path.exists() else {}
        others = [] if before else [name for name in _REPLACED if (self.workdir / name).exists()]
        if others or (any_seed and not before) or (before and "task" not in before):
            named = f" ({others[0]})" if others else ""
            raise UserError(f"{self.workdir} holds something other than a fine-tuning{named}; use another folder")
        # Seeds of an earlier version can be continued: later settings of the task have their defaults.
        before = before and recipe.with_later_settings(before)
        changed = [f"{name}: {text}" for name, text in differences(before, identity).items() if name not in _MAY_CHANGE]
        # Without a finished seed there is nothing to mix up: the config is overwritten.
        if any_seed and changed:
            raise UserError(f"{self.workdir} holds another fine-tuning ({'; '.join(changed)}); use another folder")

    def write_config(self, identity: Mapping[str, Any]) -> None:
        self.seeds_dir.mkdir(parents=True, exist_ok=True)
        _write_json(self.workdir / CONFIG, identity)

    def write_seed(self, seed: int, result: Mapping[str, Any]) -> None:
        _write_json(self._seed_path(seed), result)

    def write_answers(
        self, task: Task, seed: int, examples: Mapping[str, list[Any]], answers: Mapping[str, list[Any]]
    ) -> None:
        """Writes a seed's answers for each split in the leaderboard's format."""
        folder = self.answers_dir(seed)
        folder.mkdir(parents=True, exist_ok=True)
        # Leaderboards expect their own file names, such as MNLI-m; development sets keep theirs.
        for split in answers:
            task.write(folder / task.test.get(split, split), examples[split], answers[split])

    def has_answered(self, task: Task, seed: int, split: str) -> bool:
        """True if a seed's answers to a test set have been written."""
        # The suffix is the task's own: .tsv, .json or .txt.
        return any(self.answers_dir(seed).glob(f"{task.test[split]}.*"))

    def summarize(self, task: Task, init_from: str, seeds: Iterable[int]) -> dict[str, Any]:
        """Writes scores.json and returns its content: each score's median, lowest, highest and standard deviation.

        `model` is the folder of the best seed's model; None if it was not kept.

        Raises:
          UserError: the file of a seed is damaged.
        """
        seeds = list(seeds)
        by_seed = [self.read_seed(seed) for seed in seeds]
        best = self.best(task, seeds)
        # --keep=none, or a tokenizer that transformers cannot express, leaves the best seed without a model.
        model = None if best is None else self.model_dir(best)
        summary = {
            "task": task.name,
            "metric": task.main_metric,
            "init_from": init_from,
            "model": str(model.relative_to(self.workdir)) if model is not None and model.is_dir() else None,
            **_statistics(by_seed),
        }
        _write_json(self.workdir / SCORES, summary)
        return summary

    def read_seed(self, seed: int) -> dict[str, Any]:
        """Reads the result of a finished seed.

        Raises:
          UserError: its file is damaged.
        """
        path = self._seed_path(seed)
        result = read_json(path)
        # A copied or edited file would put scores under another seed.
        if result.get("seed") != seed or not isinstance(result.get("scores"), dict) or not result["scores"]:
            raise UserError(f"{path} is damaged: expected the scores of seed {seed}; remove it to train the seed again")
        return result

    def _seed_path(self, seed: int) -> Path:
        return self.seeds_dir / f"{seed}.json"


def _statistics(seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    by_name = {name: [seed["scores"][name] for seed in seeds] for name in seeds[0]["scores"]}
    return {
        "median": {name: statistics.median(values) for name, values in by_name.items()},
        "lowest": {name: min(values) for name, values in by_name.items()},
        "highest": {name: max(values) for name, values in by_name.items()},
        # A standard deviation needs two seeds.
        "std": {name: statistics.stdev(values) if len(values) > 1 else None for name, values in by_name.items()},
        "seeds": list(seeds),
    }


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_whole(path, json.dumps(content, indent=2) + "\n")
