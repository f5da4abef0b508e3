"""A tag for each word: names, parts of speech; columns as in the files of CoNLL.

    python -m electra_jax.finetune --config=configs/tags.py --init_from=runs/tiny --data_dir=conll

The folder has train.txt and dev.txt (or .conll): a word a line, its tag in the last column, a blank line between
sentences.
"""

from electra_jax.downstream.finetuning import recipe


def get_config(arg: str = ""):
    return recipe.make({"name": "tags", "words": 0, "tags": -1}, arg)
