"""Certificates for tests: made on the spot, trusted by nobody else."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass
class Certificate:
    """Files of a self-signed certificate."""

    cert: Path
    key: Path
    end: float
    """Seconds since 1970."""

    @property
    def context(self) -> ssl.SSLContext:
        """A client's context that trusts this certificate and no other."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.cert)
        return context

    def encrypt(self) -> None:
        """Put a passphrase on the key."""
        key = serialization.load_pem_private_key(self.key.read_bytes(), None)
        self.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(b"passphrase"),
            )
        )


def certificate(folder: Path, *names: str) -> Certificate:
    """Make a certificate for these names and addresses, valid for an hour."""
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    now = datetime.now(UTC).replace(microsecond=0)
    end = now + timedelta(hours=1)
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(end)
        .add_extension(x509.SubjectAlternativeName([_name(name) for name in names]), critical=False)
        .sign(key, hashes.SHA256())
    )
    result = Certificate(folder / "fullchain.pem", folder / "privkey.pem", end.timestamp())
    result.cert.write_bytes(built.public_bytes(serialization.Encoding.PEM))
    result.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return result


def _name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
