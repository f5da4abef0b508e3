"""A table of your own: a class, or a number, for each text or pair of texts.

    electra-jax finetune --config=table --config.task.text=review --config.task.label=stars \
        --init_from=runs/tiny --data_dir=reviews

The folder has train and dev, and test if there is one, as .tsv, .csv or .jsonl with named columns. The classes are
those of train, or `--config.task.labels=A,B`. `--config.task.kind=regression` predicts numbers;
`--config.task.pair=COLUMN` adds a second text.
"""

from ml_collections import ConfigDict

from electra_jax.downstream.finetuning import recipe


def get_config(arg: str = "") -> ConfigDict:
    return recipe.make("table", arg)
