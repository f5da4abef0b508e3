"""A run on TPUs that are not there: `python -m electra_jax.plan --config=configs/base.py --topology=v3:4x4`.

The step that `train` runs, on the same mesh, is compiled by the TPU's own compiler, and its program is read.
"""
