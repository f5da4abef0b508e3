"""What a run costs, before it is started: FLOPs of any config, and memory and time on TPU slices.

For TPUs, the step that `train` runs is compiled by the TPU's own compiler on this machine, and the program is analyzed.
"""
