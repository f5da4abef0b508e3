"""`electra-jax finetune`: fine-tunes an encoder."""

import shlex
from collections.abc import Mapping
from typing import Any

from electra_jax.config import cli, config_file
from electra_jax.config.settings import at_least, check_value, one_of
from electra_jax.downstream.finetuning import kept, results, run
from electra_jax.downstream.finetuning.recipe import FinetuneConfig
from electra_jax.runtime.console import PlainConsole, table_of
from electra_jax.runtime.progress import LINE_EVERY, ConsoleProgress

USAGE = """\
usage: electra-jax finetune --config=NAME[:ARG] --init_from=DIR --data_dir=FOLDER [--workdir=DIR] [--step=N]
                            [--keep=best|all|none] [--strict=false] [--config.NAME=VALUE ...] [--help-config] [--debug]

  --config=glue:task=cola     a task of GLUE: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte or wnli
  --config=squad:version=2.0  SQuAD 2.0, or 1.1
  --config=table              your own table: a class or a number for each text or pair of texts
  --config=tags               a tag for each word
                              (add ,size=large for the learning rates of a large encoder, ,head=paper for the paper's
                              heads instead of those of transformers, which can be exported, ,runlocal for a quick trial
                              with 64 examples and 2 seeds; a path to a config file works too)
  --init_from=DIR             a run, an export, or a Hugging Face directory of an ELECTRA, BERT, ModernBERT
                              or DeBERTaV3 model
  --step=N                    the step of the checkpoint, if DIR is a run (default: the last)
  --data_dir=FOLDER           folder with the task's files: train.tsv and dev.tsv for GLUE (an optional test.tsv gets
                              predictions), the .json files of SQuAD, train and dev as .tsv, .csv or .jsonl for tables,
                              train.txt and dev.txt for tags; or tfds:NAME/CONFIG for GLUE, SQuAD and tables
  --workdir=DIR               where scores, predictions and models go (default runs/NAME); the same command resumes
                              there
  --keep=all                  keep the model of every seed (default best: of the best one); none: keep none
  --strict=false              leave out and count invalid rows instead of stopping at the first
  --config.optim.learning_rate=3e-4
                              override any setting of the config by its name
  --help-config               list all settings with defaults and valid values
  --debug                     show the traceback of an error"""

_OPTIONS: Mapping[str, Any] = {"init_from": "", "step": "", "data_dir": "", "keep": "best", "strict": True}


def main(argv: list[str]) -> int:
    arguments = config_file.parse(argv, USAGE, _OPTIONS, kind="task", config_class=FinetuneConfig)
    options, config = arguments.options, arguments.config
    cli.require(options, ("init_from", "data_dir"), "try --init_from=runs/tiny --data_dir=glue/CoLA, or --help")
    check_value("--keep", options["keep"], one_of(*kept.KEEP))
    # A text, because 0 is a step, and without the option it is that of the last checkpoint.
    step = cli.convert("--step", options["step"], 0) if options["step"] else None
    if step is not None:
        check_value("--step", step, at_least(0))
    console = PlainConsole()
    with ConsoleProgress(console, LINE_EVERY) as progress:
        result = run.finetune(
            config,
            options["init_from"],
            options["data_dir"],
            arguments.workdir,
            step=step,
            keep=options["keep"],
            strict=options["strict"],
            progress=progress,
        )
    show_scores(console, result)
    console.print(f"Files: {arguments.workdir}/{results.SCORES}, seeds/, answers/")
    if result["model"]:
        model = f"Model of the best seed: {arguments.workdir}/{result['model']}"
        console.print(f"{model}; use it: electra-jax predict --model={shlex.quote(arguments.workdir)} --input=FILE")
    return 0


def show_scores(console: PlainConsole, result: Mapping[str, Any]) -> None:
    """Prints the result of `finetune` as a table: each score's median, lowest, highest and deviation over seeds."""
    count = len(result["seeds"])
    columns = ["median", "lowest", "highest", "std"]
    table = table_of(f"{result['task']}, {count} seed{'s' if count > 1 else ''}", ["score"], columns)
    for name in result["median"]:
        values = [result[column][name] for column in columns]
        # A single seed has no deviation.
        table.add_row(name, *("" if value is None else f"{value:.1f}" for value in values))
    console.print(table)
