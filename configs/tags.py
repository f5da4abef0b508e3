"""A tag for each word, such as named entities or parts of speech, in columns as in CoNLL's files.

    electra-jax finetune --config=tags --init_from=runs/tiny --data_dir=conll

The folder has train.txt and dev.txt (or .conll): one word per line, its tag in the last column, a blank line after each
sentence.
"""

from ml_collections import ConfigDict

from electra_jax.downstream.finetuning import recipe


def get_config(arg: str = "") -> ConfigDict:
    return recipe.make("tags", arg)
