"""Compares the three encoders at equal FLOPs on the same text: speed, FLOPs of a token, held-out numbers.

    python benchmarks/encoders.py --input='text/*.txt.xz' --output=OUT [--config=configs/tiny.py] [--flops=1e13]
        [--vocab_size=4096] [--pretraining='--config.NAME=VALUE ...']

It prepares the text, trains each encoder at the config's size for as many steps as the FLOPs (`model` count) allow, one
after another, writes OUT/encoders.json and prints it as a table: tokens/s is the median of the logged steps, so nothing
else should run meanwhile. Started again, it continues.
"""

import json
import shlex
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import electra_jax
from electra_jax import train_config
from electra_jax.config import cli, config_file, errors
from electra_jax.config.settings import above, check_value
from electra_jax.modeling.model_config import ARCHITECTURES
from electra_jax.runtime import run_log

HELDOUT = ("mlm_loss", "disc_loss", "disc_auc")
_OPTIONS = {
    "input": "",
    "output": "",
    "config": "configs/tiny.py",
    "flops": 1e13,
    "vocab_size": 4096,
    "pretraining": "",
}


def steps_for(config_path: Path, flops: float, overrides: list[str]) -> int:
    """The number of training steps that `flops` pay for."""
    config = config_file.load(config_path)
    for text in overrides:
        name, _, value = text.removeprefix("--config.").partition("=")
        config_file.override(config, name, value)
    return round(flops * int(config.steps) / electra_jax.count_flops(config).total["model"])


def call(subcommand: str, *argv: str) -> None:
    print(f"electra-jax {subcommand} {shlex.join(argv)}", flush=True)
    status = subprocess.run([sys.executable, "-m", "electra_jax", subcommand, *argv], check=False).returncode
    if status:
        sys.exit(status)  # the subcommand printed the error


def summary(workdir: Path) -> dict[str, Any]:
    """What a finished run measured: steps, tokens/s, `model` FLOPs of a token, and held-out numbers."""
    lines = run_log.read_metrics(workdir)
    speeds = [line["tokens_per_second"] for line in lines if line.get("tokens_per_second")]
    config = train_config.resolve(json.loads((workdir / "config.json").read_text()))
    evaluation = run_log.last_evaluation(lines)
    last = max(lines, key=lambda line: line["step"])
    return {
        "encoder": config.model.encoder,
        "steps": last["step"],
        "tokens_per_second": statistics.median(speeds),
        "flops_per_token": last["total_flops"] / (last["step"] * config.batch_size * config.data.seq_length),
        **({name: evaluation.metrics[name] for name in HELDOUT} if evaluation else {}),
    }


def table(runs: list[dict[str, Any]]) -> str:
    """The summaries in Markdown."""
    names = {"mlm_loss": "MLM loss", "disc_loss": "detection loss", "disc_auc": "detection AUC"}
    lines = [["", "tokens/s", "FLOPs of a token", "steps", *names.values()], ["---"] * (4 + len(names))]
    for run in runs:
        numbers = (f"{run['tokens_per_second']:,.0f}", f"{run['flops_per_token']:.3g}", f"{run['steps']:,}")
        lines.append([f"`encoder={run['encoder']}`", *numbers, *(f"{run[name]:.3f}" for name in names)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(argv: list[str]) -> int:
    chosen = cli.parse(argv, __doc__ or "", _OPTIONS)
    cli.require(chosen, ("input", "output"))
    check_value("--flops", chosen["flops"], above(0))
    output, text = Path(chosen["output"]), Path(chosen["output"]) / "text"
    call("prepare", f"--input={chosen['input']}", f"--vocab_size={chosen['vocab_size']}", f"--output={text}")
    for encoder in ARCHITECTURES:
        overrides = [
            *shlex.split(chosen["pretraining"]),
            f"--config.model.encoder={encoder}",
            f"--config.data.input={text}",
        ]
        steps = steps_for(Path(chosen["config"]), chosen["flops"], overrides)
        given = [f"--config={chosen['config']}", f"--workdir={output / encoder}"]
        call("train", *given, f"--config.steps={steps}", f"--config.eval_every={max(1, steps // 4)}", *overrides)
    found = [summary(output / encoder) for encoder in ARCHITECTURES]
    (output / "encoders.json").write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(errors.run(main))
