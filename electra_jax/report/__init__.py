"""A page about pre-training runs: `python -m electra_jax.report --runs runs/a runs/b --output=report.html`."""
