"""docker-compose.yml as an operator runs it, on a machine that has no container engine and no image registry.

    make rehearse                                   everything; nothing is left
    make rehearse ARGS="--keep --work /srv/try"     and everything runs on
    make rehearse ARGS="--keep --work /srv/try --only faults"

Invariants: what it makes lies in one folder and in namespaces of its own, and is removed at the end, which is looked
after; nothing of the project knows of it.

work              the folder, and commands that run for it
debian            packages and whole Debians, unpacked
wheels            the servers' and torch's, by the locks
enclosure         namespaces for processes, mounts and network
container_engine  Docker and Compose within
images            stand-ins for a registry's images; the project's three
site              .env, a bucket, and the services up behind the proxy
first_minute      bootstrap, a person's session and key, doctor
jobs              the demo's job, one with its own code in the sandbox, one of vLLM
faults            each service killed in the middle of a job
upgrade           a new version, and the way back
rotate            every secret changed while a job runs
restore           backups, and the site put back to one while jobs run
parts             the parts, in their order
"""
