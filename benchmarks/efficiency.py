"""Compares systems that are pre-trained with the same FLOPs on the same text and fine-tuned on the same tasks.

    python benchmarks/efficiency.py --input='text/*.txt.xz' --data_dir=glue --output=OUT [--config=configs/tiny.py]
        [--flops=6e12] [--systems electra mlm ...] [--tasks cola,sst2,...] [--points=3] [--vocab_size=4096]
        [--pretraining='--config.NAME=VALUE ...'] [--finetuning='--config.NAME=VALUE ...']

This is the paper's comparison. It prepares the text, trains each system for as many steps as the FLOPs (`model` count)
allow, and calls `electra-jax curves`. OUT has a run for each system, and OUT/curves has tables and plots. OUT/floor has
the scores of an encoder with its initial parameters, which is what fine-tuning alone reaches. Started again, it
continues. With an accelerator: --config=configs/small.py --vocab_size=30522 --flops=7.2e16, which is 6.25% of the
paper's ELECTRA-Small.
"""

import shlex
import subprocess
import sys
from pathlib import Path

from electra_jax import train_config
from electra_jax.config import cli, config_file, errors
from electra_jax.config.settings import above, check_value
from electra_jax.objectives import registry
from electra_jax.planning.flops import hardware
from electra_jax.planning.flops.breakdown import sum_networks

# The systems of the paper's table 5, the most efficient first.
SYSTEMS = ("electra", "all_tokens_mlm", "replace_mlm", "electra_15", "mlm")
TASKS = ("cola", "sst2", "mrpc", "stsb", "rte")
_OPTIONS = {
    "input": "",
    "data_dir": "",
    "output": "",
    "config": "configs/tiny.py",
    "flops": 6e12,
    "systems": SYSTEMS,
    "tasks": TASKS,
    "points": 3,
    "vocab_size": 4096,
    "pretraining": "",
    "finetuning": "",
}


def steps_for(config_path: Path, system: str, vocab_size: int, flops: float, overrides: list[str]) -> int:
    """The number of training steps of a system that `flops` pay for."""
    config = config_file.load(config_path, f"objective={system}")
    for text in overrides:
        name, _, value = text.removeprefix("--config.").partition("=")
        config_file.override(config, name, value)
    typed = train_config.resolve(config)
    objective = registry.make(typed.objective, typed.model, typed.steps, vocab_size)
    shape = (typed.batch_size, typed.data.seq_length)
    return round(flops / sum_networks(hardware.train_step(objective, objective.stages[0], *shape, typed.optim.name)))


def call(subcommand: str, *argv: str) -> None:
    print(f"electra-jax {subcommand} {shlex.join(argv)}", flush=True)
    status = subprocess.run([sys.executable, "-m", "electra_jax", subcommand, *argv], check=False).returncode
    if status:
        sys.exit(status)  # the subcommand printed the error


def main(argv: list[str]) -> int:
    chosen = cli.parse(argv, __doc__ or "", _OPTIONS)
    if chosen is None:
        return 0
    cli.require(chosen, ("input", "data_dir", "output"))
    for name in ("flops", "points"):
        check_value(f"--{name}", chosen[name], above(0))
    output, overrides = Path(chosen["output"]), shlex.split(chosen["pretraining"])
    text = output / "text"
    if any(name.startswith("--config.steps=") for name in overrides):
        raise errors.UserError("--pretraining=--config.steps=N is invalid: --flops sets the steps; leave it out")
    call("prepare", f"--input={chosen['input']}", f"--vocab_size={chosen['vocab_size']}", f"--output={text}")
    for system in chosen["systems"]:
        steps = steps_for(Path(chosen["config"]), system, chosen["vocab_size"], chosen["flops"], overrides)
        call(
            "train",
            f"--config={chosen['config']}:objective={system}",
            f"--workdir={output / system}",
            f"--config.data.input={text}",
            f"--config.steps={steps}",
            # Keeps the checkpoints that the curves use.
            f"--config.checkpoint.keep_every={max(1, steps // 2 ** (chosen['points'] - 1))}",
            f"--config.eval_every={max(1, steps // 8)}",
            *overrides,
        )
    untrained = output / "untrained"
    one = [f"--config.data.input={text}", *overrides, "--config.steps=1"]
    call("train", f"--config={chosen['config']}", f"--workdir={untrained}", *one)
    scored = [
        f"--tasks={','.join(chosen['tasks'])}",
        f"--data_dir={chosen['data_dir']}",
        *shlex.split(chosen["finetuning"]),
    ]
    runs = [str(output / system) for system in chosen["systems"]]
    call("curves", "--runs", *runs, f"--output={output / 'curves'}", f"--points={chosen['points']}", *scored)
    call("curves", "--runs", str(untrained), f"--output={output / 'floor'}", *scored)
    return 0


if __name__ == "__main__":
    sys.exit(errors.run(main))
