"""The gateway's certificate, checked before anything listens.

Invariant: a certificate that is accepted here can be served; every other one gives an error that names the file and
the remedy, and never a question on the terminal.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path


class CertificateError(ValueError):
    """The certificate or its key cannot be used; the text names the file and the remedy."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """Files in PEM form.

    Args:
        cert: the certificate, followed by the chain up to the authority.
        key: its private key, without a passphrase; None if it is in `cert` too.
    """

    cert: Path
    key: Path | None = None

    def load_into(self, context: ssl.SSLContext) -> None:
        """Read the files into a context.

        Raises:
            CertificateError: see there.
        """
        for file in (self.cert, self.key):
            if file is None:
                continue
            try:
                file.read_bytes()
            except OSError as exc:
                raise CertificateError(f"{file}: {exc.strerror}; it must be readable by this user") from exc
        try:
            context.load_cert_chain(self.cert, self.key, password=_no_passphrase)
        except _EncryptedError:
            raise CertificateError(
                f"{self.key or self.cert}: the key has a passphrase, and nobody is there to type it; "
                "write it without one: openssl pkey -in KEY -out NEW"
            ) from None
        except ssl.SSLError as exc:
            if exc.reason == "KEY_VALUES_MISMATCH":
                raise CertificateError(f"{self.key}: this key does not belong to {self.cert}") from exc
            if self.key is None:
                raise CertificateError(
                    f"{self.cert} does not hold a certificate and its key in PEM form; give the key with --tls-key"
                ) from exc
            raise CertificateError(
                f"{self.cert} and {self.key} are not a certificate and its key in PEM form ({exc.reason or exc})"
            ) from exc

    def check(self) -> None:
        """Raises CertificateError when it cannot be served."""
        self.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))

    def end(self) -> float:
        """When the certificate ceases to be valid, in seconds since 1970.

        Raises:
            CertificateError: nobody can say.
        """
        try:
            # A file may hold the chain too; the first certificate is the one that is served.
            text = self.cert.read_text(encoding="ascii", errors="replace")
            start = text.index(_BEGIN)
            pem = text[start : text.index(_END, start) + len(_END)]
            return _not_after(ssl.PEM_cert_to_DER_cert(pem))
        except (OSError, ValueError, IndexError) as exc:
            raise CertificateError(f"{self.cert}: its dates cannot be read: {exc}") from exc


_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_VERSION, _UTC_TIME = 0xA0, 0x17


def _not_after(der: bytes) -> float:
    """`Certificate.tbsCertificate.validity.notAfter` (RFC 5280, section 4.1); the standard library reads no dates."""
    at = _content(der, _content(der, 0)[0])[0]
    if der[at] == _VERSION:
        at = _content(der, at)[1]
    for _ in range(3):  # serialNumber, signature, issuer
        at = _content(der, at)[1]
    at = _content(der, _content(der, at)[0])[1]  # validity, over notBefore
    start, end = _content(der, at)
    form = "%y%m%d%H%M%SZ" if der[at] == _UTC_TIME else "%Y%m%d%H%M%SZ"
    return datetime.strptime(der[start:end].decode("ascii"), form).replace(tzinfo=UTC).timestamp()


def _content(der: bytes, at: int) -> tuple[int, int]:
    """Where the content of the element at `at` starts and ends."""
    length, start = der[at + 1], at + 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(der[at + 2 : start], "big")
    return start, start + length


class _EncryptedError(Exception):
    pass


def _no_passphrase() -> str:
    raise _EncryptedError
