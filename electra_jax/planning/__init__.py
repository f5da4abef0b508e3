"""Estimates the cost of a run before it starts: FLOPs of any config, and memory and time on TPU slices and GPUs.

The step that `train` runs is compiled on this machine by the compiler of the TPU or GPU, and the program is analyzed.
"""
