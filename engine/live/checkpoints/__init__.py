"""An attempt's checkpoints: written beside training, verified, kept beyond the node.

resuming  the trainer's folder with the data's progress: finished, opened, gone back to
writer    writes on a thread
apart     hosts of one trainer that share no folder
store     a bucket, from which the next node goes on
trial     whether this node may use that bucket
"""
