"""Whether this node may use the store of checkpoints: writing, reading and deleting one small object."""

from uuid import uuid4

from engine.live.checkpoints.store import CheckpointStore


def try_out(store: CheckpointStore) -> None:
    """Each once, without the patience that a checkpoint is worth. Raises whatever boto raises, or `OSError`."""
    client, content = store._client, uuid4().hex.encode()
    where = {"Bucket": store._bucket, "Key": store._name(f"doctor/{uuid4().hex}")}
    client.put_object(**where, Body=content)
    try:
        if client.get_object(**where)["Body"].read() != content:
            raise OSError("the store gives back something else than was written")
    finally:
        client.delete_object(**where)
