"""The tasks of GLUE, with the recipe of the ELECTRA paper.

    electra-jax finetune --config=glue:task=cola --init_from=runs/tiny --data_dir=glue/CoLA

`task=` is cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte or wnli. `,size=large` uses the learning rates of a large
encoder.
"""

from ml_collections import ConfigDict

from electra_jax.config import config_file
from electra_jax.config.errors import UserError
from electra_jax.downstream.finetuning import recipe
from electra_jax.downstream.tasks import glue


def get_config(arg: str = "") -> ConfigDict:
    # No default: the task must be that of --data_dir.
    task, rest = config_file.take(arg, "task")
    if task not in glue.TASKS:
        raise UserError(
            f"config argument {arg!r} names no task of GLUE: expected task={' or '.join(glue.TASKS)}; for example "
            "--config=glue:task=cola"
        )
    return recipe.make(task, rest)
