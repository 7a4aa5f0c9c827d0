"""Infrastructure: Laminar set up, run and packaged, by locks, set-up, one-machine supervisor, images.

local/   all of it on one machine, without containers
setup/   the environments made from the locks
locks/   the versions of packages, with their hashes
images/  recipes of containers
docs/    the picture of a job's page
"""
