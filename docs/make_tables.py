"""Writes the parts of the documentation that come from code or from measurements.

    python docs/make_tables.py                             # reference/settings.md, lines in understand/afternoon.md
    python docs/make_tables.py first_run runs/tiny         # from the run of the README's first command
    python docs/make_tables.py ladder                      # from benchmarks/results/ladder.jsonl, and its figures
    python docs/make_tables.py ablations 2x96              # from benchmarks/results/ablations.jsonl
    python docs/make_tables.py preparation TEXT            # runs benchmarks/preparation.py and loader.py on a text
    python docs/make_tables.py cpu_step runs/step.json     # from what benchmarks/step.py wrote
    python docs/make_tables.py encoders TEXT runs/encoders # runs benchmarks/encoders.py on a text
    python docs/make_tables.py plan runs/plans             # TPU slices: compiles each row; needs '.[tpu]' and an hour
    python docs/make_tables.py plan_lengths runs/plans     # ModernBERT at three lengths; needs '.[tpu]'
    python docs/make_tables.py plan_gpus runs/plans        # GPUs; needs '.[cuda]' and half an hour
    python docs/make_tables.py plan_attention runs/plans   # base on an H100 by the form of attention; needs '.[cuda]'
    python docs/make_tables.py plan_deberta runs/plans     # DeBERTaV3; needs '.[tpu,cuda]'

The plans stay in their folder as JSON, and rows that are there are not compiled again: delete it to start anew.

A table stands between `<!-- table NAME -->` and `<!-- end -->` in README.md or in a page; it is replaced there.
"""

import collections
import contextlib
import inspect
import io
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from electra_jax import __main__ as command_line
from electra_jax.config import errors
from electra_jax.config.settings import markdown_table
from electra_jax.downstream.finetuning.recipe import FinetuneConfig
from electra_jax.runtime.run_log import read_run_log
from electra_jax.train_config import TrainConfig

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path.insert(0, str(DOCS))  # where tests run this file
import plan_tables  # noqa: E402

_SETTINGS = """\
# Settings

<!-- Written by docs/make_tables.py from the config dataclasses. Do not edit. -->

`--config.NAME=VALUE` overrides a setting on the command line; in Python, change the `ConfigDict` that
`electra_jax.configs` returns. The column "default" is the default of the dataclass; a config file sets many of them to
other values. `electra-jax train --help-config` prints the same reference.
"""
_SETTINGS_SECTIONS = (
    (
        "Pre-training: `electra-jax train`",
        """\
A config has only the settings that its objective uses. A resumed run may change the settings marked "may change"; a
change of any other setting is refused.

`electra-jax prepare` takes those from `data.input` to `data.temperature`, without `data.`: `--vocab_size=16000`.""",
        TrainConfig,
    ),
    (
        "Fine-tuning: `electra-jax finetune`",
        """\
A config has only the settings of `task` that its task uses. The recipe sets the learning rate, its decay and the number
of epochs by task and size of the encoder.""",
        FinetuneConfig,
    ),
)
_COMMANDS = """\
# Commands

What `electra-jax SUBCOMMAND --help` prints. `python -m electra_jax SUBCOMMAND` is the same command.
"""


def settings_page() -> str:
    """The content of reference/settings.md."""
    sections = [f"## {title}\n\n{text}\n\n{markdown_table(config)}" for title, text, config in _SETTINGS_SECTIONS]
    return "\n".join([_SETTINGS, *sections])


def commands_page() -> str:
    """The content of reference/commands.md, which docs/conf.py writes."""
    sections = [_COMMANDS]
    for name, summary in command_line.COMMANDS.items():
        usage = io.StringIO()
        with contextlib.redirect_stdout(usage):
            errors.run(command_line.run, [name, "--help"])
        shown = usage.getvalue().rstrip()
        sections.append(f"## {name}\n\n{summary[0].upper()}{summary[1:]}.\n\n```text\n{shown}\n```\n")
    return "\n".join(sections)


def with_line_counts(page: str) -> str:
    """Fills the second column of a page's tables of files with each file's number of lines, to the nearest ten."""

    def count(row: re.Match[str]) -> str:
        return f"{row[1]} {round(len((ROOT / row[2]).read_text(encoding='utf-8').splitlines()), -1)} |"

    return re.sub(r"^(\| `(\S+\.py)` \|) *\d* *\|", count, page, flags=re.M)


SETTINGS, AFTERNOON = DOCS / "reference" / "settings.md", DOCS / "understand" / "afternoon.md"


def table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    lines = [list(head), *rows]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def first_run(workdir: str) -> str:
    """Held-out metrics of a run next to their baselines."""
    last = read_run_log(Path(workdir)).last
    get = {name.removeprefix("heldout_"): value for name, value in last.items() if name.startswith("heldout_")}
    mlm, unigram = (f"{get[name]:.2f}" for name in ("mlm_loss", "unigram_entropy"))
    detection, constant = (f"{get[name]:.3f}" for name in ("disc_loss", "constant_entropy"))
    own, simple = (f"{get[name]:.3f}".removeprefix("0") for name in ("disc_auc", "unigram_auc"))
    rows = [
        ["masked language modeling, nats per token", f"**{mlm}**", f"{unigram} (unigram entropy)"],
        ["replaced-token detection, nats per token", f"**{detection}**", f"{constant} (constant predictor)"],
        ["detection AUC, the generator's fakes", f"**{own}**", ".5"],
        ["detection AUC, unigram fakes", f"**{simple}**", ".5"],
    ]
    return table(["held-out metric", "model", "baseline without context"], rows)


def ladder() -> str:
    """The ladder's scores and the differences between systems; also puts its figures into this folder."""
    with tempfile.TemporaryDirectory() as folder:
        text = _benchmark("ladder.py", f"--draw={folder}", _results("ladder"))
        for figure in sorted(Path(folder).glob("*.svg")):
            shutil.copyfile(figure, DOCS / figure.name)
    return text.strip()


def ablations(shape: str) -> str:
    """Which changes to the recipe pay."""
    with tempfile.TemporaryDirectory() as folder:
        return _benchmark("ablations.py", f"--draw={folder}", f"--shape={shape}", _results("ablations")).strip()


def _results(name: str) -> str:
    return f"--results={ROOT / 'benchmarks' / 'results' / f'{name}.jsonl'}"


def preparation(text: str) -> str:
    """Speeds of preparation and of the loader on this machine."""
    measured = json.loads(_benchmark("preparation.py", f"--input={text}"))
    what = f"preparation of {measured['text_mb']:.0f} MB, 30,522 unigram pieces"
    speed = (
        f"{statistics.median(measured['ours_mb_per_second']):.1f} MB/s, {measured['ratio_of_medians']:.2f} of the "
        f"speed at which the tokenizer library alone encodes on {measured['cores']} cores"
    )
    rows = [
        [what, speed, "`benchmarks/preparation.py`"],
        ["its peak memory", f"{measured['peak_memory_mb']} MB", "the same"],
    ]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "electra_jax", "prepare", f"--input={text}", f"--output={folder}/text"], check=True
        )
        for line in _benchmark("loader.py", f"--input={folder}/text").splitlines():
            loader = json.loads(line)
            what = f"loader, one core, {loader['mode']} of {loader['length']}"
            speed = f"{loader['million_tokens_per_second']:.1f} million tokens/s"
            rows.append([what, speed, "`benchmarks/loader.py`"])
    return table(["what", "measured", "with"], rows)


def _benchmark(script: str, *arguments: str) -> str:
    command = [sys.executable, str(ROOT / "benchmarks" / script), *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


_VARIANTS = {
    "torch": "PyTorch, transformers' modules",
    "compiled": "the same with `torch.compile`",
    "naive": "JAX as one would write it first",
    "scanned": "this step, layers scanned",
    "unrolled": "this step, as it is by default",
}


def cpu_step(file: str) -> str:
    """Train steps on CPU, side by side."""
    measured = json.loads(Path(file).read_text(encoding="utf-8"))
    by_dropout: dict[float, dict[str, dict[str, Any]]] = collections.defaultdict(dict)
    for row in measured["rows"]:
        by_dropout[row["dropout"]][row["variant"]] = row
    rows = []
    for name, words in _VARIANTS.items():
        cells = []
        for found in by_dropout.values():
            row = found[name]
            cells += [f"{row['tokens_per_second']:,}", f"{row['of_torch']:.2f}", f"{row['share_of_gemm']:.2f}"]
        rows.append([words, *cells])
    head = [
        f"{each}, dropout {rate:g}" for rate in by_dropout for each in ("tokens/s", "of PyTorch", "of the GEMM rate")
    ]
    return table(["step", *head], rows)


def encoders(text: str, output: str) -> str:
    """The three encoders at equal FLOPs; what is trained already is not trained again."""
    return "\n".join(_benchmark("encoders.py", f"--input={text}", f"--output={output}").splitlines()[-5:])


TABLES: dict[str, Callable[..., str]] = {
    "first_run": first_run,
    "ladder": ladder,
    "ablations": ablations,
    "preparation": preparation,
    "cpu_step": cpu_step,
    "encoders": encoders,
    "plan": lambda folder: table(*plan_tables.plan(folder)),
    "plan_lengths": lambda folder: table(*plan_tables.plan_lengths(folder)),
    "plan_gpus": lambda folder: table(*plan_tables.plan_gpus(folder)),
    "plan_attention": lambda folder: table(*plan_tables.plan_attention(folder)),
    "plan_deberta": lambda folder: table(*plan_tables.plan_deberta(folder)),
}


def put(name: str, content: str) -> list[Path]:
    """Replaces a table wherever it stands; the files that were changed."""
    changed = []
    for path in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]:
        text = path.read_text(encoding="utf-8")
        pattern = rf"(?<=<!-- table {name} -->\n\n).*?(?=\n\n<!-- end -->)"
        replaced, count = re.subn(pattern, lambda _: content, text, flags=re.S)
        if count:
            path.write_text(replaced, encoding="utf-8")
            changed.append(path)
    return changed


def main(argv: list[str]) -> int:
    if not argv:
        SETTINGS.write_text(settings_page(), encoding="utf-8")
        AFTERNOON.write_text(with_line_counts(AFTERNOON.read_text(encoding="utf-8")), encoding="utf-8")
        return 0
    name, *arguments = argv
    if name not in TABLES:
        raise errors.UserError(f"{name} is no table: expected one of {', '.join(TABLES)}")
    wanted = list(inspect.signature(TABLES[name]).parameters)
    if len(arguments) != len(wanted):
        raise errors.UserError(f"{name} has {len(arguments)} arguments: expected {', '.join(wanted) or 'none'}")
    for path in put(name, TABLES[name](*arguments)):
        print(f"wrote the table {name} to {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(errors.run(main))
