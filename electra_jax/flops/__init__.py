"""FLOPs of pre-training in two accountings, and the peak performance of devices.

`model` counts the operations that the hardware must execute, `paper` those that the ELECTRA paper's script counts.
`electra-jax flops` prints both.
"""
