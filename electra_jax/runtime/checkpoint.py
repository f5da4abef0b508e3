"""Checkpoints: the train state, and with it the position in the data and the totals. No other file uses Orbax.

A checkpoint is written under a temporary name while training continues, and renamed when it is complete; one that a
kill interrupted is never seen.
"""

import contextlib
import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

from electra_jax.config.errors import UserError, first_line
from electra_jax.config.settings import above, setting
from electra_jax.runtime.console_errors import disk_error
from electra_jax.runtime.workdir import AnyPath

State = TypeVar("State")
_REASON = 200  # characters of another library's message that are shown


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """When checkpoints are written, and which are kept."""

    every: int = setting(5_000, "Steps between two checkpoints.", above(0), resumable=True)
    keep_last: int = setting(2, "How many of the newest checkpoints are kept.", above(0), resumable=True)
    keep_every: int = setting(100_000, "Checkpoints at multiples of this step are kept too.", above(0), resumable=True)


class Checkpoints:
    """The checkpoints of one run.

    Attributes:
      folder: the folder that holds them, one subfolder per step.
    """

    def __init__(self, folder: AnyPath, keep_last: int = 1, keep_every: int = 1, read_only: bool = False):
        """Opens the checkpoints of a run.

        Args:
          folder: the folder that holds them.
          keep_last: how many of the newest checkpoints are kept.
          keep_every: a checkpoint whose step is a multiple of this is kept too.
          read_only: change nothing in the folder; another process may be writing there.
        """
        self.folder = folder.absolute() if isinstance(folder, Path) else folder
        with _quiet() if read_only else contextlib.nullcontext():
            options = ocp.CheckpointManagerOptions(
                preservation_policy=policies.AnyPreservationPolicy(
                    [policies.LatestN(keep_last), policies.EveryNSteps(keep_every)]
                ),
                cleanup_tmp_directories=not read_only,
                create=not read_only,
                read_only=read_only,
            )
            handlers = {"state": ocp.StandardCheckpointHandler(), "progress": ocp.JsonCheckpointHandler()}
            self._manager = ocp.CheckpointManager(self.folder, options=options, item_handlers=handlers)

    def latest(self) -> int | None:
        """The step of the newest complete checkpoint; None if there is none."""
        return cast(int | None, self._manager.latest_step())

    def steps(self) -> list[int]:
        """The steps of all complete checkpoints, in order."""
        return sorted(self._manager.all_steps())

    def save(self, step: int, state: Any, metadata: dict[str, Any]) -> None:
        """Starts to write a checkpoint and returns as soon as `state` may change.

        Args:
          step: the step it is named after; a step is saved once.
          state: a tree of arrays.
          metadata: everything else that a resumed run needs; values that JSON can represent.
        """
        if step == self.latest():
            return
        with _report_disk_errors(self.folder):
            args = ocp.args.Composite(state=ocp.args.StandardSave(state), progress=ocp.args.JsonSave(metadata))
            self._manager.save(step, args=args, force=True)

    def metadata(self, step: int) -> dict[str, Any]:
        """The `metadata` that was saved at `step`; the checkpoint calls it "progress"."""
        args = ocp.args.Composite(progress=ocp.args.JsonRestore())
        with self._report_read_errors(step):
            return cast(dict[str, Any], self._manager.restore(step, args=args)["progress"])

    def restore(self, step: int, like: State) -> State:
        """The state that was saved at `step`.

        Args:
          step: the step.
          like: a tree of arrays or ShapeDtypeStructs with the shapes, dtypes and shardings to restore.

        Raises:
          UserError: the checkpoint cannot be read, or has other parameters than `like`.
        """
        # Compare before reading: a restore that Orbax refuses halfway leaves reads pending, which fail later in
        # TensorStore's threads, when their event loop is closed.
        with self._report_read_errors(step):
            saved = _shapes(self._manager.item_metadata(step)["state"].tree)
        self._check_shapes(step, saved, _shapes(like))
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        args = ocp.args.Composite(state=ocp.args.StandardRestore(abstract))
        with self._report_read_errors(step):
            return cast(State, self._manager.restore(step, args=args)["state"])

    def wait(self) -> None:
        """Returns when everything is on disk; raises errors of writing."""
        with _report_disk_errors(self.folder):
            self._manager.wait_until_finished()

    def close(self) -> None:
        self._manager.close()

    def _check_shapes(self, step: int, saved: dict[str, tuple[int, ...]], expected: dict[str, tuple[int, ...]]) -> None:
        for name in sorted(saved.keys() | expected.keys()):
            if saved.get(name) != expected.get(name):
                has, expects = (
                    f"has {name} of shape {list(shapes[name])}" if name in shapes else f"has no {name}"
                    for shapes in (saved, expected)
                )
                raise UserError(
                    f"checkpoint {self.folder / str(step)} does not fit this model: it {has}, the model {expects}; "
                    "use the config that it was made with, or another --workdir"
                )

    @contextlib.contextmanager
    def _report_read_errors(self, step: int) -> Iterator[None]:
        """Makes a UserError of the many kinds of exceptions that Orbax and TensorStore raise for a damaged file."""
        try:
            yield
        except (jax.errors.JaxRuntimeError, MemoryError):  # not the checkpoint's fault
            raise
        except Exception as error:
            if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
                raise  # nor this: permissions, the network, ...
            reason = f"{type(error).__name__}: {first_line(error)[:_REASON]}"
            raise UserError(
                f"checkpoint {self.folder / str(step)} cannot be read ({reason}); try again, or, if one of its files "
                "is damaged, move that folder away to use an earlier checkpoint"
            ) from error


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    """Shapes by path, as in `params.embeddings.word`; nested dicts and nested attributes give the same paths."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf.shape for path, leaf in leaves}


@contextlib.contextmanager
def _report_disk_errors(folder: AnyPath) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        reason = disk_error(error)
        if reason is None:
            raise
        raise UserError(
            f"{folder}: {reason} while writing a checkpoint; earlier ones are complete: free some space and run the "
            "same command again"
        ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps Orbax from warning that a manager which is asked to be read-only is read-only."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
