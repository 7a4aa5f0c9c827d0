"""What the operator of a site does, from an empty database on.

beginning    who operates it, and the first team, project, pool and quota
ray_cluster  the site's Rays, each once: devices, strangers, small jobs on the head
checks/      looks at everything that a site needs
models       the last examination
found_assets models and data sets that lie on the nodes, as they last reported it
status       the site as it was last examined, for the page
background   the look at the store, at intervals
"""
