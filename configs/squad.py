"""SQuAD 1.1 and 2.0, with the recipe and the heads of the ELECTRA paper.

python -m electra_jax.finetune --config=configs/squad.py:version=2.0 --init_from=runs/base --data_dir=squad
"""

from electra_jax.config.errors import UserError
from electra_jax.downstream.finetuning import recipe

_TASKS = {
    "version=1.1": {"name": "squad1", **recipe.ANSWERING},
    "version=2.0": {"name": "squad2", **recipe.ANSWERING, **recipe.THRESHOLD},
}


def get_config(arg: str = ""):
    named = [part for part in arg.split(",") if part in _TASKS]
    if not named:
        raise UserError(f"configs/squad.py:{arg} names no version; give configs/squad.py:{' or '.join(_TASKS)}")
    return recipe.make(_TASKS[named[0]], ",".join(part for part in arg.split(",") if part not in named))
