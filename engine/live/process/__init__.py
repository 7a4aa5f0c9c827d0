"""The knowledge of one process of a run about itself and the cluster."""
