"""SQuAD 1.1 and 2.0, with the recipe and the heads of the ELECTRA paper.

python -m electra_jax.finetune --config=configs/squad.py:version=2.0 --init_from=runs/base --data_dir=squad
"""

from electra_jax.errors import UserError
from electra_jax.finetuning import recipe

_NAMES = {"version=1.1": "squad1", "version=2.0": "squad2"}


def get_config(arg: str = ""):
    version, *rest = arg.split(",")
    if version not in _NAMES:
        raise UserError(f"configs/squad.py:{arg} names no version; give configs/squad.py:{' or '.join(_NAMES)}")
    return recipe.make({"name": _NAMES[version], **recipe.ANSWERING}, ",".join(rest))
