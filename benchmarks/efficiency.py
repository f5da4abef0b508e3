"""The paper's comparison: systems pre-trained with the same FLOPs on the same text, each fine-tuned on the same tasks.

    python benchmarks/efficiency.py --input='text/*.txt.xz' --data_dir=glue --output=OUT [--config=configs/tiny.py]
        [--flops=6e12] [--systems electra mlm ...] [--tasks cola,sst2,...] [--points=3] [--vocab_size=4096]
        [--pretraining='--config.NAME=VALUE ...'] [--finetuning='--config.NAME=VALUE ...']

It prepares the text, trains each system for as many steps as the FLOPs (of the `model` accounting) allow, and calls
electra_jax.curves on them: OUT has a run for each system, and OUT/curves the tables and pictures. OUT/floor has the
scores of an encoder that was pre-trained for a single step, which is what fine-tuning alone reaches. Started again, it
goes on. With an accelerator: --config=configs/small.py --vocab_size=30522 --flops=7.2e16, which is 6.25% of the paper's
ELECTRA-Small.
"""

import shlex
import subprocess
import sys
from pathlib import Path

from cli_runs import make_objective

from electra_jax.config import cli, config_file, errors
from electra_jax.planning.flops import hardware
from electra_jax.planning.flops.breakdown import sum_networks

# Of the paper's table 5, the most efficient first.
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
    """How many steps of a system take so many operations."""
    config = config_file.load(config_path, f"objective={system}")
    for text in overrides:
        name, _, value = text.removeprefix("--config.").partition("=")
        config_file.override(config, name, value)
    objective = make_objective(config, vocab_size)
    one = sum_networks(
        hardware.train_step(objective, objective.stages[0], config.batch_size, config.data.seq_length)
    )
    return round(flops / one)


def call(module: str, *argv: str) -> None:
    print(f"python -m electra_jax.{module} {shlex.join(argv)}", flush=True)
    status = subprocess.run([sys.executable, "-m", f"electra_jax.{module}", *argv], check=False).returncode
    if status:
        sys.exit(status)  # it has said why


def main(argv: list[str]) -> int:
    chosen = cli.parse(argv, __doc__ or "", _OPTIONS)
    if chosen is None:
        return 0
    cli.require(chosen, ("input", "data_dir", "output"))
    cli.check(chosen, {"flops": cli.above(0), "points": cli.above(0)}, "--")
    output, overrides = Path(chosen["output"]), shlex.split(chosen["pretraining"])
    text = output / "text"
    if any(name.startswith("--config.steps=") for name in overrides):
        raise errors.UserError("--pretraining=--config.steps cannot be; --flops says how many")
    call("prepare", f"--input={chosen['input']}", f"--vocab_size={chosen['vocab_size']}", f"--output={text}")
    for system in chosen["systems"]:
        steps = steps_for(Path(chosen["config"]), system, chosen["vocab_size"], chosen["flops"], overrides)
        call(
            "train",
            f"--config={chosen['config']}:objective={system}",
            f"--workdir={output / system}",
            f"--config.data.input={text}",
            f"--config.steps={steps}",
            # The halves that the curves are drawn from.
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
