"""Estimates the memory and time of a run on TPU slices and GPUs before it starts.

The step that `train` runs is compiled on this machine by the compiler of the TPU or GPU, and the program is analyzed.
"""
