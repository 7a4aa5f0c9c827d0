"""Export of a finished job's curves into the formats of other trackers.

curves       reads every series of a job, window by window, into a run
port         what a run is: points go in, and where they then are
parameters   a spec as parameters
folders      a folder that is there when it is whole
libraries    a tracker's own library, or what to install
mlflow       a run in an MLflow store
tensorboard  a run that TensorBoard reads
wandb        an offline run of Weights & Biases

`decisions.md`, two folders above, says why their libraries write the formats.
"""
