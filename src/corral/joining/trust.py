"""The controller's certificate: made once by itself, and known to others by its fingerprint.

Nobody vouches for it and no name in it matters: whoever is invited gets the fingerprint with the
invitation, compares it with what the controller has, and from then on talks to nobody else.

What a connection shows is another one, signed with that one and of the same key. It has every name
and address of the controller, for programs that insist on them, and is made anew when they change.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import ipaddress
import socket
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from corral.core.errors import HomeUnusable, Unavailable, WrongCertificate
from corral.home import make_folder, write_durably
from corral.joining.invitation import bracketed

if TYPE_CHECKING:
    from urllib.request import OpenerDirector

    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

NAME = "corral"
"""What the certificate is called; our own clients insist on this name, by whichever they come."""
SHOWN_NAME = "corral controller"
FETCH_S = 20.0
CERTIFICATE_BYTES = 65_536
"""More is read of nobody who has shown nothing yet."""


def kept_certificate(folder: Path) -> tuple[Path, Path]:
    """The certificate and the key in a folder that only its owner reads, made on first use."""
    certificate, key = _pair(folder)
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


def _pair(folder: Path) -> tuple[Path, Path]:
    return folder / "certificate.pem", folder / "key.pem"


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
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    signs = x509.KeyUsage(True, False, False, False, False, True, False, False, False)
    made = _begun(NAME, key.public_key())
    made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    made = made.add_extension(signs, critical=True)
    certificate = made.sign(key, hashes.SHA256())
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return certificate.public_bytes(serialization.Encoding.PEM), secret


def _begun(name: str, public_key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    from datetime import UTC, datetime

    from cryptography import x509
    from cryptography.x509.oid import NameOID

    def called(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    return (
        x509.CertificateBuilder()
        .subject_name(called(name))
        .issuer_name(called(NAME))
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        # A worker whose clock is wrong shall still find its controller.
        .not_valid_before(datetime(2000, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2099, 1, 1, tzinfo=UTC))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def shown_certificate(folder: Path, places: Iterable[str]) -> Path:
    """The file that connections are shown, for these names and addresses; the kept certificate
    vouches for it, so that whoever knows that one needs to hear nothing of a change. That one is
    read and never made here: a controller that runs would become one that nobody knows."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    certificate, key = _pair(folder)
    shown, pem = folder / "shown.pem", certificate.read_bytes()
    _check_pair(certificate, key)
    named = _named(places)
    if _names_in(shown, pem) == set(named):
        return shown
    secret = serialization.load_pem_private_key(key.read_bytes(), None)
    assert isinstance(secret, ec.EllipticCurvePrivateKey)
    public = secret.public_key()
    made = _begun(SHOWN_NAME, public)
    made = made.add_extension(x509.SubjectAlternativeName(named), critical=False)
    made = made.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    made = made.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False
    )
    serves = x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH])
    made = made.add_extension(serves, critical=False)
    signed = made.sign(secret, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    try:
        write_durably(shown, signed + pem)
    except OSError:
        if not _names_in(shown, pem):
            raise
    return shown


def _named(places: Iterable[str]) -> list[x509.GeneralName]:
    from cryptography import x509

    found: list[x509.GeneralName] = []
    for place in sorted({NAME, *places}):
        with contextlib.suppress(ValueError):  # a host may have a name that is none of the network
            try:
                found.append(x509.IPAddress(ipaddress.ip_address(place)))
            except ValueError:
                found.append(x509.DNSName(place))
    return found


def _names_in(shown: Path, certificate: bytes) -> set[x509.GeneralName]:
    """What the file names; nothing where there is none, or not one that our certificate signed."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    try:
        chain = x509.load_pem_x509_certificates(shown.read_bytes())
        ours = x509.load_pem_x509_certificate(certificate)
        if chain[1:] != [ours]:
            return set()
        chain[0].verify_directly_issued_by(ours)
        return set(chain[0].extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except (OSError, ValueError, InvalidSignature, x509.ExtensionNotFound):
        return set()


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


def offered(host: str, port: int) -> str:
    """The certificate that whoever answers there says is the controller's; whether it is the right
    one is open, but they do have its key."""
    from urllib.error import HTTPError
    from urllib.request import HTTPSHandler, ProxyHandler, build_opener

    unproven = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unproven.check_hostname, unproven.verify_mode = False, ssl.CERT_NONE
    asking = build_opener(ProxyHandler({}), HTTPSHandler(context=unproven))
    try:
        with asking.open(f"https://{bracketed(host)}:{port}/certificate", timeout=FETCH_S) as told:
            pem = str(told.read(CERTIFICATE_BYTES), "ascii")
        proven = context(pem)
    except HTTPError as error:
        raise Unavailable(
            f"Who answers at {host}:{port} has no certificate to give ({error}). See that it is "
            "the HTTP port of a controller, and that its Corral is not older than this one."
        ) from error
    except (OSError, ValueError) as error:
        raise Unavailable(
            f"No controller answers at {host}:{port} ({error}). See that it runs with "
            "`corral up --host 0.0.0.0` and that no firewall stands in between."
        ) from error
    try:
        with (
            socket.create_connection((host, port), timeout=FETCH_S) as plain,
            proven.wrap_socket(plain),
        ):
            return pem
    except ssl.SSLCertVerificationError as error:
        raise WrongCertificate(
            f"Whoever answers at {host}:{port} gives a certificate away that is not theirs: "
            "somebody stands in between. Ask whoever runs that network."
        ) from error
    except OSError as error:
        raise Unavailable(f"The controller at {host}:{port} is gone again ({error}).") from error


def fetched(host: str, port: int, expected: str) -> str:
    pem = offered(host, port)
    if fingerprint(pem) != expected.lower():
        raise WrongCertificate(
            f"Whoever answers at {host}:{port} is not the controller that invited you: the "
            "certificate is another one. Ask for a new string (`corral invite`), and see that "
            "nobody stands in between."
        )
    return pem


def context(pem: str) -> ssl.SSLContext:
    """Talks to the holder of this certificate's key alone, under whatever name it is reached."""
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
