"""How Laminar is set up, run and packaged: locks, set-up, one-machine supervisor, images.

local/   all of it on one machine, without containers
setup/   makes the environments from the locks
locks/   which versions, with their hashes
images/  how containers are made
docs/    the picture of a job's page
"""
