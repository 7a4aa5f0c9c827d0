"""A server that speaks S3, as a process of its own: moto's. It keeps everything in memory and forgets it at its end."""

import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread
from typing import Any

import boto3
from botocore.config import Config

from infra.local.ports import free_port
from tests.certificates import Certificate

CREDENTIALS: Mapping[str, str] = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Server:
    endpoint: str
    process: subprocess.Popen[bytes]

    def make_bucket(self, name: str) -> None:
        self._client().create_bucket(Bucket=name)

    def keys_in(self, bucket: str, prefix: str) -> list[str]:
        rows = self._client().list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", [])
        return [row["Key"] for row in rows]

    def _client(self) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            region_name="us-east-1",
            config=Config(retries={"total_max_attempts": 20, "mode": "standard"}, connect_timeout=2),
        )


@contextmanager
def s3_server(port: int = 0, certificate: Certificate | None = None) -> Iterator[S3Server]:
    """Answers when it is handed out; over TLS, as `localhost`, if it has a certificate."""
    port = port or free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    if certificate is not None:
        command += ["--ssl-cert", str(certificate.chain), "--ssl-key", str(certificate.key)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if b"Running on http" in line:
                    break
            else:
                raise RuntimeError(f"moto's server ended with {process.wait()}")
            # The server logs a line for each request, and stops answering once 64 KB of them are unread.
            Thread(target=deque, args=[process.stderr, 0], daemon=True).start()
            yield S3Server(endpoint=f"http{'s' if certificate else ''}://127.0.0.1:{port}", process=process)
        finally:
            process.kill()
