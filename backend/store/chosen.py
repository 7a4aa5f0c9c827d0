"""The store that this control plane uses: LAMINAR_STORE_URL (s3://bucket/prefix), or the folder LAMINAR_STORE_DIR."""

from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from django.conf import settings

from backend.store.folder import FolderStore
from backend.store.port import ObjectStore


@cache
def store() -> ObjectStore:
    """One a process: a client of S3 keeps its connections, and threads may share it."""
    environment = settings.ENVIRONMENT
    return store_at(environment.store_url, folder=environment.store_dir, endpoint=environment.store_endpoint or None)


def store_at(url: str, *, folder: Path, endpoint: str | None = None) -> ObjectStore:
    if not url:
        return FolderStore(folder)
    parts = urlsplit(url)
    if parts.scheme != "s3" or not parts.netloc:
        raise ValueError(f"LAMINAR_STORE_URL must look like s3://bucket/prefix, not {url!r}")
    from backend.store.s3 import S3Store  # boto3 costs every process 0.3 s; only who uses it pays

    return S3Store(bucket=parts.netloc, prefix=parts.path, endpoint=endpoint)
