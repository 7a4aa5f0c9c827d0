"""The pipeline's very brains under a virtual clock, with faults drawn from a seed.

world          one run: a cluster, the blows that it takes, what is asked of it
scenario       jobs of random shape; faults, the faults of a seed; costs, what things cost
cluster        the processes; process, one of them; network and outbox, what is between them
…_body, bodies what the brains' effects do; environment, the worker that has no brain
checks         the oracle of what is trained; driver_oracle, of what is announced and of the end
kernel         virtual time; chance, the seed
"""
