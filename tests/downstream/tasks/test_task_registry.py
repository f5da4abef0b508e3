import pytest
from ml_collections import ConfigDict

from electra_jax.config.errors import UserError
from electra_jax.downstream.tasks import registry


def test_unknown_tasks():
    with pytest.raises(UserError, match="there is no task 'colla'; there are cola, "):
        registry.make(ConfigDict({"name": "colla"}), "")
