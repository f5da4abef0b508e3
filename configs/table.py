"""A table of yours: a class, or a number, for each text or pair of texts.

    python -m electra_jax.finetune --config=configs/table.py --config.task.text=review --config.task.label=stars \
        --init_from=runs/tiny --data_dir=reviews

The folder has train and dev, and test if there is one, as .tsv, .csv or .jsonl, with named columns. The classes are
those of train, or `--config.task.labels=A,B`.
"""

from electra_jax.downstream.finetuning import recipe


def get_config(arg: str = ""):
    task = {
        "name": "table",
        "kind": "classification",  # or regression
        "text": "text",
        "pair": "",  # the second text's column, if there is one
        "label": "label",
        "labels": "",
        "index": "index",  # the column that names a row, for what is written about test; rows are counted without
    }
    return recipe.make(task, arg)
