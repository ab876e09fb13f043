"""Under which names and addresses others reach this controller, followed as long as it runs: the
certificate names them, the neighbours hear of them, invitations lead to the best one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import grpc
import structlog

from corral.joining import addresses
from corral.joining.addresses import Interface
from corral.joining.discovery import Announced, Announcement
from corral.joining.trust import shown_certificate
from corral.server import listening
from corral.server.listening import Http
from corral.settings import Settings

log = structlog.get_logger()


class OwnAddresses:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._chosen = listening.numeric(settings.host)
        self.invited = self._best()
        """The one that others are told."""

    def _best(self) -> str:
        return self._settings.advertise or listening.own_address(self._settings.host)

    def served(self, interfaces: Mapping[str, Interface]) -> dict[str, tuple[str, ...]]:
        """Of each interface, the addresses at which we listen."""
        found = {
            name: tuple(one for one in interface.addresses if self._is_served(one))
            for name, interface in interfaces.items()
        }
        return {name: ours for name, ours in found.items() if ours}

    def _is_served(self, address: str) -> bool:
        if self._settings.host in listening.ANYWHERE:
            return self._settings.host == "::" or ":" not in address
        return address in self._chosen

    def places(self, interfaces: Mapping[str, Interface]) -> set[str]:
        """What the certificate names: where others look for us, and this machine itself."""
        ours = (one for served in self.served(interfaces).values() for one in served)
        return {"localhost", *listening.own_names(self._settings), *ours}

    def announced(self, interfaces: Mapping[str, Interface]) -> dict[str, Announced]:
        """To neighbours: on each network that is there, what is ours of it, and IPv4 where we
        have a choice, which everybody has."""
        up = {name: interface for name, interface in interfaces.items() if interface.is_up}
        found: dict[str, Announced] = {}
        for name, served in self.served(up).items():
            said_from = _of_ipv4(up[name].addresses)
            if said_from and not listening.is_loopback(served[0]):
                found[name] = Announced(_of_ipv4(served) or served, said_from)
        return found

    async def follow(
        self,
        shown: ShownCertificate,
        announcement: Announcement | None,
        moved: Callable[[str], None],
    ) -> None:
        async with contextlib.aclosing(addresses.changes()) as changes:
            async for _ in changes:
                interfaces = addresses.interfaces()
                if shown.renew(places := self.places(interfaces)):
                    log.info("certificate_renewed", names=sorted(places))
                if announcement is not None:
                    await announcement.follow(self.announced(interfaces))
                if (best := self._best()) != self.invited:
                    self.invited = best
                    moved(best)


def _of_ipv4(addresses: Sequence[str]) -> tuple[str, ...]:
    return tuple(one for one in addresses if ":" not in one)


class ShownCertificate:
    """The one that both doors show, and its successors while they are open."""

    def __init__(self, folder: Path, key: Path, own: OwnAddresses) -> None:
        self._folder, self._key = folder, key
        self.file = shown_certificate(folder, own.places(addresses.interfaces()))
        self._pem = self._told_grpc = self.file.read_bytes()
        self.http: Http | None = None

    def renew(self, places: set[str]) -> bool:
        """For the next connections; those that are open stay."""
        pem = shown_certificate(self._folder, places).read_bytes()
        if pem == self._pem:
            return False
        self._pem = pem
        if self.http is not None and self.http.config.ssl is not None:
            self.http.config.ssl.load_cert_chain(self.file, self._key)
        return True

    def for_grpc(self) -> grpc.ServerCredentials:
        key = self._key.read_bytes()

        def current() -> grpc.ServerCertificateConfiguration:
            return grpc.ssl_server_certificate_configuration([(key, self._pem)])

        def newer() -> grpc.ServerCertificateConfiguration | None:
            if self._told_grpc is self._pem:
                return None
            self._told_grpc = self._pem
            return current()

        return grpc.dynamic_ssl_server_credentials(current(), newer)  # type: ignore[arg-type]
