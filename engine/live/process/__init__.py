"""The knowledge of one process of a run about itself and the cluster.

settings       the environment, read in one place
ray_session    the connection to Ray
hosts          the hosts of the cluster, and what each has free
deadline       the time that others are waited for, less what the waiting one slept through
interruptions  events from outside that end an attempt
devices        the device that Ray gave
fitting        the refusal of what cannot fit its memory
memory         memory that ran out, and the arithmetic of what is needed
core_waits     whether a process of this host waits for a core, or cannot run for another reason
kernel_kills   processes that the kernel of a host has killed for want of memory
links          addresses and the token by which the processes of a run reach each other
code_version   a hash over the sources that this process runs from
"""
