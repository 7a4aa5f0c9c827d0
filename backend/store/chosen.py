"""The configured store: LAMINAR_STORE_URL (s3://bucket/prefix), or the folder LAMINAR_STORE_DIR."""

from functools import cache
from pathlib import Path

from django.conf import settings

from backend.store.folder import FolderStore
from backend.store.port import ObjectStore
from engine.spec.assets.store_address import StoreAddress


@cache
def store() -> ObjectStore:
    """One per process: an S3 client keeps its connections, and threads may share it."""
    environment = settings.ENVIRONMENT
    return store_at(
        environment.store_url,
        folder=environment.store_dir,
        endpoint=environment.store_endpoint,
        region=environment.store_region,
        addressing=environment.store_addressing,
    )


def store_at(url: str, *, folder: Path, endpoint: str = "", region: str = "", addressing: str = "") -> ObjectStore:
    """Raises `ValueError`."""
    if not url:
        return FolderStore(folder)
    address = StoreAddress.read(url, endpoint=endpoint, region=region, addressing=addressing)
    from backend.store.s3 import S3Store  # importing boto3 takes 0.3 s

    return S3Store(address)
