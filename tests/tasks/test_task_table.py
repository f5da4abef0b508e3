import pytest
from ml_collections import ConfigDict

from electra_jax.errors import UserError
from electra_jax.tasks import table


def test_unknown_tasks():
    with pytest.raises(UserError, match="there is no task 'colla'; there are cola, "):
        table.make(ConfigDict({"name": "colla"}), "")
