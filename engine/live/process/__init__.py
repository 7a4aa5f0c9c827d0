"""What one process of a run knows of itself and of the cluster.

settings       the environment, read in one place
ray_session    the connection to Ray
interruptions  what ends an attempt from outside
devices        the device that Ray gave
links          what the processes of a run share in order to reach each other
code_version   a hash over the sources that this process runs from
"""
