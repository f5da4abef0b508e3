"""Writes docs/settings.md, the reference of all settings, from the config dataclasses.

python docs/make_settings.py
"""

from pathlib import Path

from electra_jax.config.settings import markdown_table
from electra_jax.downstream.finetuning.recipe import FinetuneConfig
from electra_jax.train_config import TrainConfig

PAGE = Path(__file__).with_name("settings.md")

_INTRODUCTION = """\
# Settings

<!-- Written by docs/make_settings.py from the config dataclasses. Do not edit. -->

`--config.NAME=VALUE` overrides a setting on the command line; in Python, change the `ConfigDict` that
`electra_jax.configs` returns. The column "default" is the default of the dataclass; a config file sets many of them to
other values. `electra-jax train --help-config` prints the same reference.
"""

_SECTIONS = (
    (
        "Pre-training: `electra-jax train`",
        """\
A config has only the settings that its objective uses. A resumed run may change the settings marked "may change"; a
change of any other setting is refused.

`electra-jax prepare` takes those from `data.input` to `data.shard_mb`, without `data.`: `--vocab_size=16000`.""",
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


def page() -> str:
    """The content of docs/settings.md."""
    sections = [f"## {title}\n\n{text}\n\n{markdown_table(config)}" for title, text, config in _SECTIONS]
    return "\n".join([_INTRODUCTION, *sections])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
