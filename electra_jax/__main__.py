"""`electra-jax SUBCOMMAND`, the same as `python -m electra_jax SUBCOMMAND`.

A subcommand is a module of `commands/` with `main(argv) -> exit status`. It is imported when it is called: `--help`
answers at once, and Ctrl-C during the imports is reported in one line.
"""

import functools
import gc
import importlib
import sys

import electra_jax
from electra_jax.config import errors
from electra_jax.config.interrupts import Interrupts

COMMANDS = {
    "train": "pre-train an encoder",
    "prepare": "turn documents into a vocabulary and tokenized records",
    "detect": "mark the words of a text that seem to be replaced",
    "finetune": "fine-tune and score an encoder on a downstream task",
    "predict": "predict labels, numbers, answers or tags with a fine-tuned model",
    "score": "score minimal pairs of texts by their plausibility",
    "export": "write a run or a fine-tuned model as Hugging Face directories",
    "card": "print the model card of a run",
    "push": "upload a model to the Hugging Face Hub",
    "verify": "read runs and prepared corpora and check every file",
    "curves": "fine-tune every checkpoint and plot scores against FLOPs",
    "report": "write a page that compares runs",
    "flops": "count the training FLOPs of a config, or of the paper's runs",
    "plan": "compile a config's step for TPUs or GPUs and estimate memory and time",
}

# These run the same programs over and over, so the memory that they free is soon needed again.
_REPEATING = ("train", "finetune", "curves")
# Allocations between garbage collections: with 700, the default of Python 3.11, tracing a step takes an eighth longer.
_ALLOCATIONS = 50_000


def usage() -> str:
    """Returns the text that `electra-jax --help` prints."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items()]
    more = (
        "`electra-jax SUBCOMMAND --help` lists its options. With --debug, an error shows its traceback.\n"
        "`electra-jax --version` prints the version."
    )
    return "\n".join(["usage: electra-jax SUBCOMMAND [--name=value ...]", "", *lines, "", more])


def run(argv: list[str]) -> int:
    """Runs the subcommand `argv[0]` and returns its exit status.

    Raises:
      UserError: there is no such subcommand.
    """
    if argv == ["--version"]:
        print(f"electra_jax {electra_jax.__version__}")
        return 0
    if not argv or argv[0] in ("-h", "--help"):
        print(usage())
        return 0
    name, *rest = argv
    if name not in COMMANDS:
        raise errors.UserError(f"unknown subcommand {name!r}: expected one of {', '.join(COMMANDS)}; see --help")
    return int(importlib.import_module(f"electra_jax.commands.{name}").main(rest) or 0)


def main(argv: list[str] | None = None) -> int:
    """Runs a subcommand as this process's command: errors are printed as one line, and libraries are silenced.

    Args:
      argv: the arguments; by default those of this process.
    """
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0] in _REPEATING:
        from electra_jax.runtime import host_memory

        # Before `Interrupts` starts a thread: its first allocation would make a second heap, which later threads share.
        host_memory.keep_freed()
    interrupts = Interrupts(debug="--debug" in argv)
    with interrupts.installed():
        return errors.run(functools.partial(_run_in_own_process, interrupts), argv)


def _run_in_own_process(interrupts: Interrupts, argv: list[str]) -> int:
    if argv and argv[0] in COMMANDS:
        # During the imports the collector would traverse all imported objects again and again.
        gc.disable()
        from electra_jax.runtime import console_errors, jax_errors  # slow, and not needed by `--help`

        importlib.import_module(f"electra_jax.commands.{argv[0]}")
        # Later collections leave out what the imports made.
        gc.freeze()
        gc.enable()
        gc.set_threshold(_ALLOCATIONS)
        console_errors.quiet_libraries(interrupts)
        # JAX itself would fail only at its first compilation.
        jax_errors.check_environment()
        with interrupts.unwinding(), jax_errors.reported():
            return run(argv)
    with interrupts.unwinding():
        return run(argv)


if __name__ == "__main__":
    sys.exit(main())
