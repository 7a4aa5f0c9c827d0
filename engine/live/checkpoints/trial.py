"""Checks that this node can use the checkpoint store: writes, reads and deletes one small object."""

from uuid import uuid4

from engine.live.checkpoints.store import CheckpointStore


def try_out(store: CheckpointStore) -> None:
    """One try each, without the retries of a real checkpoint. Raises boto's errors, or `OSError`."""
    client, content = store._client, uuid4().hex.encode()
    where = {"Bucket": store._bucket, "Key": store._name(f"doctor/{uuid4().hex}")}
    client.put_object(**where, Body=content)
    try:
        if client.get_object(**where)["Body"].read() != content:
            raise OSError("the store returned other bytes than were written")
    finally:
        client.delete_object(**where)
