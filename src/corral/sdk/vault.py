"""A controller's secrets: values that jobs ask for by name. What is set is never read back."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from corral.contract.views import SecretView
    from corral.sdk.transport.connection import Connection


class AsyncSecrets:
    """`client.secrets` of an AsyncClient."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def set(self, name: str, value: str) -> SecretView:
        """Keeps the value under this name, in the place of an older one."""
        from corral.contract import corral_pb2 as pb
        from corral.contract.read_views import read

        request = pb.SetSecretRequest(name=name, value=value)
        found: SecretView = read(await self._connection.call("SetSecret", request))
        return found

    async def list(self) -> list[SecretView]:
        """Names and when each was set; never values."""
        from corral.contract import corral_pb2 as pb
        from corral.contract.read_views import read

        reply = await self._connection.call("ListSecrets", pb.ListSecretsRequest())
        return [read(one) for one in reply.secrets]

    async def remove(self, name: str) -> SecretView:
        from corral.contract import corral_pb2 as pb
        from corral.contract.read_views import read

        request = pb.RemoveSecretRequest(name=name)
        found: SecretView = read(await self._connection.call("RemoveSecret", request))
        return found


class Secrets:
    """`client.secrets` of a Client. See AsyncSecrets for what each method does."""

    def __init__(
        self,
        secrets: Callable[[], AsyncSecrets],
        call: Callable[[Coroutine[Any, Any, Any]], Any],
    ) -> None:
        self._secrets, self._call = secrets, call

    def set(self, name: str, value: str) -> SecretView:
        found: SecretView = self._call(self._secrets().set(name, value))
        return found

    def list(self) -> list[SecretView]:
        found: list[SecretView] = self._call(self._secrets().list())
        return found

    def remove(self, name: str) -> SecretView:
        found: SecretView = self._call(self._secrets().remove(name))
        return found
