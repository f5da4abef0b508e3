"""How many floating-point operations pre-training takes, in two accountings, and what a device can do.

`model` counts what the machine must do, `paper` what the ELECTRA paper's script counts; `python -m electra_jax.flops`
prints both.
"""
