"""SQuAD 1.1 and 2.0, with the recipe of the ELECTRA paper; `head=paper` has its heads too.

electra-jax finetune --config=squad:version=2.0 --init_from=runs/base --data_dir=squad
"""

from ml_collections import ConfigDict

from electra_jax.config import config_file
from electra_jax.config.errors import UserError
from electra_jax.downstream.finetuning import recipe

_TASKS = {"1.1": "squad1", "2.0": "squad2"}


def get_config(arg: str = "") -> ConfigDict:
    version, rest = config_file.take(arg, "version")
    if version not in _TASKS:
        raise UserError(
            f"config argument {arg!r} names no version of SQuAD: expected version={' or '.join(_TASKS)}; for example "
            "--config=squad:version=2.0"
        )
    return recipe.make(_TASKS[version], rest)
