"""Checkpoints: the train state with the position in the data and the totals. No other file uses Orbax.

A checkpoint is written under a temporary name while training continues, and renamed when it is complete, so a partial
one is never seen. Checksums are computed from the arrays on the devices before these are written, and compared with the
arrays on the devices after these are read.
"""

import contextlib
import dataclasses
import logging
from collections.abc import Collection, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar, cast

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

from electra_jax.config.errors import UserError, describe
from electra_jax.config.phases import fraction
from electra_jax.config.settings import Check, above, setting
from electra_jax.runtime.checksums import array_checksums, summarize
from electra_jax.runtime.console_errors import disk_error
from electra_jax.runtime.io import json_checksum
from electra_jax.runtime.workdir import AnyPath

State = TypeVar("State")
_LEAST_PART = 2**22  # bytes; smaller slices of an array are not worth saving separately
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """When checkpoints are written, and which are kept."""

    every: int = setting(5_000, "Save a checkpoint every this many steps.", above(0), resumable=True)
    keep_last: int = setting(2, "Number of most recent checkpoints to keep.", above(0), resumable=True)
    keep_every: int = setting(100_000, "Also keep the checkpoints at multiples of this step.", above(0), resumable=True)
    keep_at: str = setting(
        "",
        "Also save and keep checkpoints at these fractions of the steps, separated by commas.",
        Check(lambda text: _shares(text) is not None, "fractions up to 1, separated by commas"),
        resumable=True,
    )

    def kept_steps(self, steps: int) -> frozenset[int]:
        """Returns the steps of `keep_at` in a run of `steps` steps."""
        # At least 1: a run saves no step 0.
        return frozenset(max(1, round(steps * share)) for share in _shares(self.keep_at) or ())


def _shares(text: str) -> list[Fraction] | None:
    shares = [fraction(part.strip()) for part in text.split(",") if part.strip()]
    known = [share for share in shares if share is not None]
    return known if len(known) == len(shares) else None


class _Manager(ocp.CheckpointManager):  # type: ignore[misc] # Orbax has no types
    """Orbax's manager, which leaves preemption to the training loop."""

    def reached_preemption(self, step: int) -> bool:
        """Returns False: Orbax would ask JAX with earlier steps, which sets back the count that processes agree by."""
        return False


class NewestUpTo(policies.PreservationPolicy):  # type: ignore[misc] # Orbax has no types
    """Policy that preserves the newest checkpoint up to `step`."""

    step = -1

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        newest = max((each.step for each in checkpoints if each.step <= self.step), default=None)
        return [each.step == newest for each in checkpoints]


class Checkpoints:
    """The checkpoints of one run.

    Attributes:
      folder: the folder that holds them, one subfolder per step.
      good: its `step` is the last good one: the newest checkpoint up to it is kept, however many newer ones there are;
        -1: none.
    """

    def __init__(
        self,
        folder: AnyPath,
        keep_last: int = 1,
        keep_every: int = 1,
        read_only: bool = False,
        keep: Collection[int] = (),
    ):
        """Opens the checkpoints of a run.

        Args:
          folder: the folder that holds them.
          keep_last: the number of most recent checkpoints to keep.
          keep_every: also keep the checkpoints whose step is a multiple of this.
          read_only: change nothing in the folder; another process may be writing there.
          keep: also keep the checkpoints of these steps.
        """
        self.folder = folder.absolute() if isinstance(folder, Path) else folder
        self.good = NewestUpTo()
        with _quiet() if read_only else contextlib.nullcontext():
            options = ocp.CheckpointManagerOptions(
                preservation_policy=policies.AnyPreservationPolicy(
                    [
                        policies.LatestN(keep_last),
                        policies.EveryNSteps(keep_every),
                        policies.CustomSteps(sorted(keep)),
                        self.good,
                    ]
                ),
                cleanup_tmp_directories=not read_only,
                create=not read_only,
                read_only=read_only,
            )
            handlers = {
                "state": ocp.PyTreeCheckpointHandler(type_handler_registry=_array_handlers()),
                "progress": ocp.JsonCheckpointHandler(),
                "checksums": ocp.JsonCheckpointHandler(),
            }
            self._manager = _Manager(self.folder, options=options, item_handlers=handlers)

    def latest(self) -> int | None:
        """Returns the step of the newest complete checkpoint; None if there is none."""
        return cast(int | None, self._manager.latest_step())

    def steps(self) -> list[int]:
        """Returns the steps of all complete checkpoints, in order."""
        return sorted(self._manager.all_steps())

    def delete(self, step: int) -> None:
        """Deletes the checkpoint of `step`."""
        self._manager.delete(step)

    def save(self, step: int, state: Any, metadata: dict[str, Any]) -> None:
        """Starts writing a checkpoint and returns as soon as `state` may change.

        If a single-process run could not write the previous checkpoint, this warns and waits until the new one is on
        disk.

        Args:
          step: the step that the checkpoint is named after; a step is saved once.
          state: a tree of arrays.
          metadata: everything else that a resumed run needs; values that JSON can represent.

        Raises:
          UserError: `state` has a value that is not finite, or the disk is full.
        """
        if step == self.latest():
            return
        summaries = summarize(_by_path(state))
        if spoiled := [name for name, summary in summaries.items() if not summary.finite]:
            raise UserError(
                f"step {step} is not saved: {spoiled[0]} has a value that is not finite; earlier checkpoints are "
                "complete: lower config.optim.learning_rate and use another --workdir, or go back with --rewind_to=STEP"
            )
        arrays = {name: summary.checksum for name, summary in summaries.items()}
        checksums = {"step": step, "arrays": arrays, "progress": json_checksum(metadata)}
        # Without a checksum of its own, damage to this item would pass for damage to the arrays.
        checksums["checksum"] = json_checksum(checksums)
        retry = self._previous_failed(step)
        with _report_disk_errors(self.folder):
            args = ocp.args.Composite(
                state=ocp.args.PyTreeSave(state),
                progress=ocp.args.JsonSave(metadata),
                checksums=ocp.args.JsonSave(checksums),
            )
            # `force` turns off Orbax's own decision when to save: the loop has decided.
            self._manager.save(step, args=args, force=True)
            # Waits, so that a second failure ends the run now and not after the next steps.
            if retry:
                self._manager.wait_until_finished()

    def _previous_failed(self, step: int) -> bool:
        """Waits for the previous checkpoint; True if it was not written. Orbax would raise its error on saving `step`.

        Not with several processes: the write may fail in one of them, and the others learn of it many minutes later.
        """
        if jax.process_count() > 1:
            return False
        try:
            self._manager.wait_until_finished()
        except Exception as error:
            reason = disk_error(error) or describe(error)
            _log.warning("warning: the checkpoint before step %d was not written (%s)", step, reason)
            self._manager.reload()  # Orbax has forgotten those that were to be deleted after that one
            return True
        return False

    def metadata(self, step: int) -> dict[str, Any]:
        """Reads the `metadata` that was saved at `step`; the checkpoint calls it "progress".

        Raises:
          UserError: it cannot be read, or has changed since it was written.
        """
        metadata: dict[str, Any] = self._read_json(step, "progress")
        if json_checksum(metadata) != self.checksums(step)["progress"]:
            raise self._damaged(step, "progress has changed since it was written")
        return metadata

    def checksums(self, step: int) -> dict[str, Any]:
        """Reads the checksums that were saved at `step`: `arrays`, by the arrays' names; `progress`, of the metadata.

        Raises:
          UserError: they cannot be read, or have changed since they were written.
        """
        checksums = self._read_json(step, "checksums")
        if not isinstance(checksums, dict) or checksums.pop("checksum", None) != json_checksum(checksums):
            raise self._damaged(step, "its checksums have changed since they were written")
        # A folder may have been renamed, or copied from another step.
        if checksums["step"] != step:
            raise self._damaged(step, f"it was written as the checkpoint of step {checksums['step']}")
        return checksums

    def saved_arrays(self, step: int) -> Any:
        """Reads the tree of arrays saved at `step`, as ShapeDtypeStructs on the first device, to be restored there.

        Raises:
          UserError: the checkpoint cannot be read.
        """
        device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        return jax.tree.map(
            lambda saved: jax.ShapeDtypeStruct(saved.shape, saved.dtype, sharding=device), self._read_shapes(step)
        )

    def restore(self, step: int, like: State, partial: bool = False) -> State:
        """Restores the state that was saved at `step`.

        Args:
          step: the step.
          like: a tree of arrays or ShapeDtypeStructs with the shapes, dtypes and shardings to restore.
          partial: whether `like` is a part of what was saved; only this part is read.

        Raises:
          UserError: the checkpoint cannot be read, has other parameters than `like`, or an array has changed since it
            was written.
        """
        # Compare before reading: a restore that Orbax refuses halfway leaves reads pending, which fail later in
        # TensorStore's threads, when their event loop is closed.
        expected, saved = _by_path(like), _by_path(self._read_shapes(step))
        if partial:
            saved = {name: saved[name] for name in expected if name in saved}
        self._check_fits(step, saved, expected)
        before = self.checksums(step)["arrays"]
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        shardings = ocp.checkpoint_utils.construct_restore_args(abstract)
        restore = ocp.args.PyTreeRestore(abstract, restore_args=shardings, partial_restore=partial)
        with self._report_read_errors(step):
            state = cast(State, self._manager.restore(step, args=ocp.args.Composite(state=restore))["state"])
        now = array_checksums(_by_path(state))
        self._check_arrays(step, {name: before.get(name) for name in now} if partial else before, now)
        return state

    def wait(self) -> None:
        """Waits until everything is on disk; raises write errors."""
        with _report_disk_errors(self.folder):
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits until everything is on disk, and closes the checkpoints; raises write errors."""
        with _report_disk_errors(self.folder):
            self._manager.close()

    def _read_json(self, step: int, item: str) -> Any:
        with self._report_read_errors(step):
            return self._manager.restore(step, args=ocp.args.Composite(**{item: ocp.args.JsonRestore()}))[item]

    def _read_shapes(self, step: int) -> Any:
        """Reads the tree of the arrays' descriptions, which have `shape` and `dtype`."""
        with self._report_read_errors(step):
            return self._manager.item_metadata(step)["state"].tree

    def _check_fits(self, step: int, saved: dict[str, Any], expected: dict[str, Any]) -> None:
        for name in sorted(saved.keys() | expected.keys()):
            has, expects = (_describe(name, arrays.get(name)) for arrays in (saved, expected))
            if has != expects:
                raise UserError(
                    f"checkpoint {self.folder / str(step)} does not fit this model: it has {has}, the model has "
                    f"{expects}; use the config that it was made with, or another --workdir"
                )

    def _check_arrays(self, step: int, saved: dict[str, str], restored: dict[str, str]) -> None:
        changed = sorted(name for name in saved.keys() | restored.keys() if saved.get(name) != restored.get(name))
        if changed:
            others = f" (one of {len(changed)} such arrays)" if len(changed) > 1 else ""
            raise self._damaged(step, f"{changed[0]} has changed since the checkpoint was written{others}")

    def _damaged(self, step: int, reason: str) -> UserError:
        return UserError(f"checkpoint {self.folder / str(step)} is damaged: {reason}; {self._way_out(step)}")

    def _way_out(self, step: int) -> str:
        earlier = max((other for other in self.steps() if other < step), default=None)
        if earlier is None:
            return "it is the first one, so restore a copy of that folder, or move it away to start from step 0"
        return f"move that folder away to use the checkpoint of step {earlier}"

    @contextlib.contextmanager
    def _report_read_errors(self, step: int) -> Iterator[None]:
        """Converts the many kinds of exceptions that Orbax and TensorStore raise for a damaged file to UserError."""
        try:
            yield
        except (jax.errors.JaxRuntimeError, MemoryError):  # not the checkpoint's fault
            raise
        except Exception as error:
            if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
                raise  # nor this: permissions, the network, ...
            reason = describe(error)
            raise UserError(
                f"checkpoint {self.folder / str(step)} cannot be read ({reason}); try again, or, if one of its files "
                f"is damaged: {self._way_out(step)}"
            ) from error


def _array_handlers() -> Any:
    """Returns Orbax's registry of array handlers.

    By default each device that holds a replica of an array saves a slice of it. Slicing takes a compiled program for
    each shape, which small arrays are not worth.
    """
    handler = ocp.type_handlers.ArrayHandler(min_slice_bytes_for_replica_parallel=_LEAST_PART)
    return ocp.type_handlers.create_type_handler_registry((jax.Array, handler))


def _by_path(tree: Any) -> dict[str, Any]:
    """Maps paths, as in `params.embeddings.word`, to leaves; nested dicts and nested attributes give the same paths."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def _describe(name: str, array: Any) -> str:
    return f"no {name}" if array is None else f"{name} of shape {list(array.shape)} and type {array.dtype}"


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
    """Silences Orbax's warning that a manager which was requested as read-only is read-only."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
