"""The tasks of GLUE, with the recipe of the ELECTRA paper.

    python -m electra_jax.finetune --config=configs/glue.py:task=cola --init_from=runs/tiny --data_dir=glue/CoLA

`task=` is cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte or wnli; `,size=large` has the rates of a large encoder.
"""

from electra_jax.config.errors import UserError
from electra_jax.downstream.finetuning import recipe
from electra_jax.downstream.tasks import glue


def get_config(arg: str = ""):
    named = [part for part in arg.split(",") if part.startswith("task=")]
    name = named[0].removeprefix("task=") if named else ""
    if name not in glue.TASKS:
        raise UserError(f"configs/glue.py:{arg} names no task; give configs/glue.py:task={' or '.join(glue.TASKS)}")
    return recipe.make({"name": name}, ",".join(part for part in arg.split(",") if part not in named))
