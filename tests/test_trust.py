"""The controller's certificate: the same one for good, and never half of one. What connections are
shown follows the addresses, and whoever knows the kept one never notices."""

from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from corral.core.errors import HomeUnusable
from corral.joining import trust
from corral.runtime.files.transfer import connection_to


def test_made_once(tmp_path: Path) -> None:
    certificate, key = trust.kept_certificate(tmp_path / "tls")
    before = certificate.read_bytes(), key.read_bytes()
    assert trust.kept_certificate(tmp_path / "tls") == (certificate, key)
    trust.shown_certificate(tmp_path / "tls", ["192.0.2.7"])
    assert (certificate.read_bytes(), key.read_bytes()) == before


@pytest.mark.parametrize("name", ["certificate.pem", "key.pem"])
def test_a_damaged_one_is_said_and_not_replaced(tmp_path: Path, name: str) -> None:
    """Workers know the controller by it: a new one would lock all of them out without a word."""
    trust.kept_certificate(tmp_path)
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(HomeUnusable, match="invite every worker"):
        trust.kept_certificate(tmp_path)
    assert (tmp_path / name).read_bytes() == b""


def _met(context: ssl.SSLContext, shown: Path, called: str) -> str:
    """What a client with this context says of whoever shows the file, called so."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(shown, shown.with_name("key.pem"))
    here, there = socket.socketpair()

    def serve() -> None:
        try:
            serving.wrap_socket(there, server_side=True).close()
        except OSError:
            there.close()

    server = threading.Thread(target=serve)
    server.start()
    try:
        with context.wrap_socket(here, server_hostname=called):
            return "welcome"
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    finally:
        here.close()
        server.join()


def _strict(certificate: Path) -> ssl.SSLContext:
    """As a program of Python 3.13 and others insist on it."""
    made = ssl.create_default_context(cafile=certificate)
    made.verify_flags |= ssl.VERIFY_X509_STRICT
    return made


def test_every_name_and_address_is_in_the_one_that_is_shown(tmp_path: Path) -> None:
    certificate, _ = trust.kept_certificate(tmp_path)
    shown = trust.shown_certificate(tmp_path, ["192.0.2.7", "2001:db8::7", "barn", "not a name"])
    for called in ("192.0.2.7", "2001:db8::7", "barn", "corral"):
        assert _met(_strict(certificate), shown, called) == "welcome"
    assert "192.0.2.8" in _met(_strict(certificate), shown, "192.0.2.8")


def test_new_addresses_change_neither_the_key_nor_what_others_pinned(tmp_path: Path) -> None:
    certificate, _ = trust.kept_certificate(tmp_path)
    pinned = trust.context(certificate.read_text())
    first = trust.shown_certificate(tmp_path, ["192.0.2.7"]).read_text()
    assert trust.shown_certificate(tmp_path, ["192.0.2.7"]).read_text() == first
    shown = trust.shown_certificate(tmp_path, ["192.0.2.8"])
    assert shown.read_text() != first
    assert _met(pinned, shown, "elsewhere") == "welcome"
    pins = {trust.public_key_pin(pem) for pem in (first, shown.read_text())}
    assert pins == {trust.public_key_pin(certificate.read_text())}


@pytest.mark.parametrize("name", ["certificate.pem", "key.pem"])
def test_one_that_is_gone_is_not_made_anew_for_new_addresses(tmp_path: Path, name: str) -> None:
    """A controller that runs has told the first one to everybody; both files may come back."""
    pair = trust.kept_certificate(tmp_path)
    trust.shown_certificate(tmp_path, ["192.0.2.7"])
    (tmp_path / name).rename(tmp_path / "away")
    kept = {path: path.read_bytes() for path in pair if path.exists()}
    with pytest.raises((OSError, HomeUnusable)):
        trust.shown_certificate(tmp_path, ["192.0.2.8"])
    assert not (tmp_path / name).exists()
    assert kept == {path: path.read_bytes() for path in kept}
    (tmp_path / "away").rename(tmp_path / name)
    trust.shown_certificate(tmp_path, ["192.0.2.8"])


def test_a_certificate_of_before_vouches_as_well(tmp_path: Path) -> None:
    """Homes had one without a word on what its key is for."""
    made, secret = trust._make()
    kept, key = (
        x509.load_pem_x509_certificate(made),
        serialization.load_pem_private_key(secret, None),
    )
    before = x509.CertificateBuilder().subject_name(kept.subject).issuer_name(kept.issuer)
    before = before.public_key(kept.public_key()).serial_number(kept.serial_number)
    before = before.not_valid_before(kept.not_valid_before_utc)
    before = before.not_valid_after(kept.not_valid_after_utc)
    before = before.add_extension(x509.SubjectAlternativeName([x509.DNSName("corral")]), False)
    before = before.add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
    pem = before.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)  # type: ignore[arg-type]
    (tmp_path / "key.pem").write_bytes(secret)
    (tmp_path / "certificate.pem").write_bytes(pem)
    shown = trust.shown_certificate(tmp_path, ["192.0.2.7"])
    assert _met(trust.context(pem.decode()), shown, "elsewhere") == "welcome"
    # What moves a job's files does not insist on it either, in whichever Python a job has.
    moves = connection_to("https://127.0.0.1", str(tmp_path / "certificate.pem"), 1.0)
    assert not moves._context.verify_flags & ssl.VERIFY_X509_STRICT  # type: ignore[attr-defined]
    plain = ssl.create_default_context(cadata=pem.decode())
    plain.verify_flags &= ~ssl.VERIFY_X509_STRICT
    assert _met(plain, shown, "192.0.2.7") == "welcome"


@pytest.mark.parametrize("found", ["", "half", "another's"])
def test_a_damaged_one_that_is_shown_is_made_anew(tmp_path: Path, found: str) -> None:
    certificate, _ = trust.kept_certificate(tmp_path / "tls")
    shown = trust.shown_certificate(tmp_path / "tls", ["192.0.2.7"])
    trust.kept_certificate(tmp_path / "other")
    others = trust.shown_certificate(tmp_path / "other", ["192.0.2.7"]).read_text()
    whole = shown.read_text()
    shown.write_text({"": "", "half": whole[: len(whole) // 2], "another's": others}[found])
    shown = trust.shown_certificate(tmp_path / "tls", ["192.0.2.7"])
    assert _met(_strict(certificate), shown, "192.0.2.7") == "welcome"
