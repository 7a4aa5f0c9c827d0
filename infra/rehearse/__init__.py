"""docker-compose.yml as an operator runs it, on a machine that has no container engine and no image registry.

    make rehearse                                   everything; nothing is left
    make rehearse ARGS="--keep --work /srv/try"     and everything runs on
    make rehearse ARGS="--keep --work /srv/try --only faults"

Invariants: what it makes lies in one folder and in namespaces of its own, and is removed at the end, which is looked
after; nothing of the project knows of it.
"""
