"""The controller's certificate: made once by itself, and known to others by its fingerprint.

Nobody vouches for it and no name in it matters: whoever is invited gets the fingerprint with the
invitation, compares it with what the controller shows, and from then on talks to nobody else.
"""

from __future__ import annotations

import base64
import hashlib
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from corral.core.errors import HomeUnusable, Unavailable, WrongCertificate
from corral.home import make_folder, write_durably

if TYPE_CHECKING:
    from urllib.request import OpenerDirector

NAME = "corral"
"""What the certificate is called; clients that insist on a name ask for this one."""
FETCH_S = 20.0


def kept_certificate(folder: Path) -> tuple[Path, Path]:
    """The certificate and the key in a folder that only its owner reads, made on first use."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    if certificate.exists() and key.exists():
        _check_pair(certificate, key)
        return certificate, key
    made, secret = _make()
    try:
        make_folder(folder)
        # One after the other: a certificate is never there without its key.
        write_durably(key, secret)
        write_durably(certificate, made)
    except OSError as error:
        raise HomeUnusable(
            f"The controller's certificate cannot be kept in {folder} ({error.strerror}). See that "
            "the disk has space left and that the folder is yours, then start again."
        ) from error
    return certificate, key


def _check_pair(certificate: Path, key: Path) -> None:
    """Refuses a damaged one and does not replace it: workers know the controller by it."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except (OSError, ValueError) as error:
        raise HomeUnusable(
            f"The controller's certificate in {certificate.parent} cannot be used ({error}). "
            "Restore both files from a backup; or remove them, start again and invite every worker "
            "anew."
        ) from error


def _make() -> tuple[bytes, bytes]:
    # Loaded only here: nobody who merely checks a certificate needs it.
    from datetime import UTC, datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # A worker whose clock is wrong shall still find its controller.
        .not_valid_before(datetime(2000, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2099, 1, 1, tzinfo=UTC))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return certificate.public_bytes(serialization.Encoding.PEM), secret


def fingerprint(pem: str) -> str:
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()


def public_key_pin(pem: str) -> str:
    """The SHA-256 of the public key, as curl's `--pinnedpubkey sha256//…` takes it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization

    key = x509.load_pem_x509_certificate(pem.encode()).public_key()
    der = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return base64.b64encode(hashlib.sha256(der).digest()).decode()


def shown(host: str, port: int) -> str:
    """The certificate that whoever answers there shows; whether it is the right one is open."""
    try:
        return ssl.get_server_certificate((host, port), timeout=FETCH_S)
    except (OSError, ValueError) as error:
        raise Unavailable(
            f"No controller answers at {host}:{port} ({error}). See that it runs with "
            "`corral up --host 0.0.0.0` and that no firewall stands in between."
        ) from error


def fetched(host: str, port: int, expected: str) -> str:
    pem = shown(host, port)
    if fingerprint(pem) != expected.lower():
        raise WrongCertificate(
            f"Whoever answers at {host}:{port} is not the controller that invited you: the "
            "certificate is another one. Ask for a new string (`corral invite`), and see that "
            "nobody stands in between."
        )
    return pem


def context(pem: str) -> ssl.SSLContext:
    """Talks to the holder of exactly this certificate, under whatever name it is reached."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.check_hostname = False
    made.load_verify_locations(cadata=pem)
    return made


def health_of(url: str, certificate: object, timeout: float) -> bytes:
    """What the controller of this machine says of itself; the certificate is a file of its home."""
    pem = Path(str(certificate)).read_text(encoding="ascii") if certificate else ""
    with opener(pem).open(f"{url}/health", timeout=timeout) as answer:
        found: bytes = answer.read()
        return found


def opener(pem: str = "") -> OpenerDirector:
    """For HTTP without any proxy; where a certificate is given, with its holder alone."""
    from urllib.request import HTTPSHandler, ProxyHandler, build_opener

    secure = [HTTPSHandler(context=context(pem))] if pem else []
    return build_opener(ProxyHandler({}), *secure)
