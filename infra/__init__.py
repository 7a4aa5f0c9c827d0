"""Infrastructure: Laminar set up, run and packaged, by locks, set-up, one-machine supervisor, images.

local/    all of it on one machine, without containers
setup/    the environments made from the locks
backup/   an installation backed up and put back
rehearse/ docker-compose.yml, tried on a container engine of its own
variables/  the operator's table of variables and .env.example, written from their declarations
locks/    the versions of packages, with their hashes
images/   recipes of containers
seccomp/  the system calls that an engine's container is allowed
monitoring/  alarms and a board for a Prometheus and a Grafana
proxy/    what ends TLS before the site's containers
own/      what of docker-compose.yml is left out where it stands elsewhere
kuberay/  a Ray cluster on Kubernetes
slurm/    a Ray cluster within a Slurm job
docs/     the picture of a job's page
"""
