"""The address of the bucket, read from the environment in the same way by the control plane and every node.

Credentials come from where boto3 looks for them: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_ROLE_ARN with
AWS_WEB_IDENTITY_TOKEN_FILE, a profile, the machine's role. AWS_CA_BUNDLE: the file of a private certificate authority.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

from engine.spec.node_variables import read_variable


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAddress:
    bucket: str
    prefix: str
    """Without leading and trailing slashes; empty: the whole bucket."""
    endpoint: str
    """The URL of another server than Amazon's; empty: Amazon's."""
    region: str
    addressing: str

    @classmethod
    def read(cls, url: str, *, endpoint: str = "", region: str = "", addressing: str = "") -> Self:
        """Raises `ValueError`."""
        parts = urlsplit(url)
        if parts.scheme != "s3" or not parts.netloc:
            raise ValueError(f"LAMINAR_STORE_URL must be s3://bucket/prefix, got {url!r}")
        server = urlsplit(endpoint)
        if endpoint and (server.scheme not in {"http", "https"} or not server.hostname):
            raise ValueError(f"LAMINAR_STORE_ENDPOINT must be https://host:port, got {endpoint!r}")
        addressing = addressing or "path"  # works on self-hosted servers, where bucket names are rarely host names
        if addressing not in {"path", "virtual"}:
            raise ValueError(
                f"LAMINAR_STORE_ADDRESSING must be path (https://host/bucket/key) or virtual "
                f"(https://bucket.host/key), got {addressing!r}"
            )
        return cls(
            bucket=parts.netloc, prefix=parts.path.strip("/"), endpoint=endpoint, region=region, addressing=addressing
        )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self | None:
        """None: no bucket is configured. Raises `ValueError`."""
        url = read_variable("LAMINAR_STORE_URL", environment)
        endpoint = read_variable("LAMINAR_STORE_ENDPOINT", environment)
        region = read_variable("LAMINAR_STORE_REGION", environment)
        addressing = read_variable("LAMINAR_STORE_ADDRESSING", environment)
        return cls.read(url, endpoint=endpoint, region=region, addressing=addressing) if url else None

    @property
    def client_options(self) -> dict[str, Any]:
        """Arguments of `boto3.client`."""
        return {"endpoint_url": self.endpoint or None, "region_name": self.region or None}

    @property
    def config_options(self) -> dict[str, Any]:
        """Arguments of botocore's `Config`, with a timeout for every call. Amazon's own checksums, which other servers
        refuse, are sent only when required: our objects are verified by their hashes."""
        return {
            "connect_timeout": 5,
            "read_timeout": 30,
            "signature_version": "s3v4",
            "s3": {"addressing_style": self.addressing},
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
        }
