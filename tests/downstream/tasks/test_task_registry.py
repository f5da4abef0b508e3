import pytest

from electra_jax.config.errors import UserError
from electra_jax.downstream.tasks import registry
from electra_jax.downstream.tasks.config import TaskConfig


def test_unknown_tasks():
    with pytest.raises(UserError, match=r"config\.task\.name='colla' is invalid: expected cola or "):
        registry.make_task(TaskConfig(name="colla"), "")
