"""Report pages and plots from the logs of pre-training runs."""

from electra_jax.config.errors import UserError

try:
    import matplotlib  # noqa: F401 - every module of this package draws with it
except ImportError as error:
    raise UserError("plots need matplotlib, which is not installed; pip install 'electra_jax[downstream]'") from error
