"""A certificate authority of one test, and certificates that it signs. Nothing of it outlives the folder."""

import ipaddress
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    chain: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """Of a server."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.chain, self.key)
        return context


class Authority:
    """`file` is what its clients are to believe."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = self._signed(name, self._key.public_key(), x509.BasicConstraints(ca=True, path_length=0))
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def certificate_for(self, host: str) -> Certificate:
        """Of a name or an address, and of no other."""
        key = ec.generate_private_key(ec.SECP256R1())
        host_name: x509.GeneralName
        try:
            host_name = x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            host_name = x509.DNSName(host)
        signed = self._signed(host, key.public_key(), x509.SubjectAlternativeName([host_name]))
        made = Certificate(
            chain=self._folder / f"{self._name}-{host}.pem", key=self._folder / f"{self._name}-{host}.key"
        )
        made.chain.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        made.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        made.key.chmod(0o600)
        return made

    def _signed(
        self,
        subject: str,
        key: ec.EllipticCurvePublicKey,
        extension: x509.BasicConstraints | x509.SubjectAlternativeName,
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self._name)]))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
            .sign(self._key, hashes.SHA256())
        )
