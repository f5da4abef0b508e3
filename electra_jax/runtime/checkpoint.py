"""Checkpoints: the step's state, and beside it the position in the data and the totals. No other file knows Orbax.

A checkpoint is written under a temporary name while training goes on and renamed when it is whole, so one that a kill
cut off is never seen.
"""

import contextlib
import dataclasses
import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

from electra_jax.config.errors import UserError, first_line
from electra_jax.config.settings import above, setting
from electra_jax.runtime.workdir import AnyPath, is_remote
from electra_jax.step import TrainState

_REASON = 200  # characters of a reason
_DISK_FULL = ("No space left on device", "Disk quota exceeded", "File too large")


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """When checkpoints are written, and which are kept."""

    every: int = setting(5_000, "Steps between two checkpoints.", above(0), resumable=True)
    keep_last: int = setting(2, "Newest checkpoints that are kept.", above(0), resumable=True)
    keep_every: int = setting(100_000, "Checkpoints at multiples of this step are kept too.", above(0), resumable=True)


class Checkpoints:
    """The checkpoints of one run.

    Attributes:
      folder: where they lie, one folder a step.
    """

    def __init__(self, folder: AnyPath, keep_last: int = 1, keep_every: int = 1, read_only: bool = False):
        """Keeps the last `keep_last` checkpoints and every one whose step is a multiple of `keep_every`.

        With `read_only` nothing in the folder changes: the run that writes there may be going on.
        """
        _leave_reporting_to_us()
        self.folder = folder if is_remote(folder) else folder.absolute()
        policies = checkpoint_managers
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
        """The step of the newest whole checkpoint, None where there is none."""
        return self._manager.latest_step()

    def steps(self) -> list[int]:
        """Of all whole checkpoints."""
        return sorted(self._manager.all_steps())

    def save(self, step: int, state: TrainState, progress: dict[str, Any]) -> None:
        """Begins to write a checkpoint; returns once `state` may change. `progress` is what JSON can hold."""
        if step == self.latest():
            return
        with _disk_errors_in_a_line(self.folder):
            args = ocp.args.Composite(state=ocp.args.StandardSave(state), progress=ocp.args.JsonSave(progress))
            self._manager.save(step, args=args, force=True)

    def progress(self, step: int) -> dict[str, Any]:
        """What was saved beside the state of `step`."""
        args = ocp.args.Composite(progress=ocp.args.JsonRestore())
        with self._read_errors_in_a_line(step):
            return self._manager.restore(step, args=args)["progress"]

    def restore(self, step: int, like: TrainState) -> TrainState:
        """The state of `step`, with the shapes, types and shardings of `like` (arrays or ShapeDtypeStructs)."""
        # Compared before anything is read: what Orbax refuses halfway leaves reads behind that end in an event loop
        # which is closed by then, each in a thread of TensorStore's.
        with self._read_errors_in_a_line(step):
            saved, wanted = _shapes(self._manager.item_metadata(step)["state"].tree), _shapes(like)
        for name in sorted(saved.keys() | wanted.keys()):
            if saved.get(name) != wanted.get(name):
                there, here = (
                    f"has {name} of shape {list(shapes[name])}" if name in shapes else f"has no {name}"
                    for shapes in (saved, wanted)
                )
                raise UserError(
                    f"checkpoint {self.folder / str(step)} does not fit this model: it {there}, the model {here}; "
                    "use the config it was made with, or another --workdir"
                )
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        args = ocp.args.Composite(state=ocp.args.StandardRestore(abstract))
        with self._read_errors_in_a_line(step):
            return self._manager.restore(step, args=args)["state"]

    def wait(self) -> None:
        """Returns when everything is on disk; raises what went wrong on the way."""
        with _disk_errors_in_a_line(self.folder):
            self._manager.wait_until_finished()

    def close(self) -> None:
        self._manager.close()

    @contextlib.contextmanager
    def _read_errors_in_a_line(self, step: int) -> Iterator[None]:
        """What Orbax and TensorStore raise where a file is cut or gone is of many kinds; this makes a line of it."""
        try:
            yield
        except (jax.errors.JaxRuntimeError, MemoryError):  # not the checkpoint's fault
            raise
        except Exception as error:
            if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
                raise  # nor this: permissions, the network, ...
            reason = f"{type(error).__name__}: {first_line(error)[:_REASON]}"
            raise UserError(
                f"checkpoint {self.folder / str(step)} cannot be read ({reason}); try again, or, if a file of it "
                "is cut, move that folder away and use an earlier one"
            ) from error


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    """By the path of a leaf, `params.embeddings.words`; the same where a dict stands for what had attributes."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf.shape for path, leaf in leaves}


def _disk_error(error: BaseException | None) -> str | None:
    return next((text for text in _DISK_FULL if text in str(error)), None)


def _leave_reporting_to_us() -> None:
    """Orbax and TensorStore print what fails in their threads, a page each; `save` and `wait` raise it again anyway."""
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)

    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)

    def in_thread(args: threading.ExceptHookArgs) -> None:
        if _disk_error(args.exc_value) is None:
            threading.__excepthook__(args)

    def in_callback(args: "sys.UnraisableHookArgs") -> None:
        if str(args.exc_value) != "Event loop is closed":
            sys.__unraisablehook__(args)

    threading.excepthook, sys.unraisablehook = in_thread, in_callback


@contextlib.contextmanager
def _disk_errors_in_a_line(folder: AnyPath) -> Iterator[None]:
    """TensorStore reports a full disk as a ValueError with a long text; this makes a line of it."""
    try:
        yield
    except Exception as error:
        reason = _disk_error(error)
        if reason is None:
            raise
        raise UserError(
            f"{folder}: {reason} while a checkpoint was written; earlier ones are whole: free some space and run the "
            "same command again"
        ) from error
