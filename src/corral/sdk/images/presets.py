"""A controller's presets: bases of plans that are kept under a name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from typing import Any

    from corral.contract.views import PresetView
    from corral.sdk.transport.connection import Connection


class AsyncPresets:
    """`client.presets` of an AsyncClient."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def save(self, name: str, base: Mapping[str, Any]) -> PresetView:
        """Keeps settings by stage under this name, in the place of older ones."""
        from corral.contract import corral_pb2 as pb
        from corral.contract.read_views import read

        request = pb.SavePresetRequest(name=name, value=json.dumps(base).encode())
        found: PresetView = read(await self._connection.call("SavePreset", request))
        return found

    async def list(self) -> list[PresetView]:
        from corral.contract import corral_pb2 as pb
        from corral.contract.read_views import read

        reply = await self._connection.call("ListPresets", pb.ListPresetsRequest())
        return [read(one) for one in reply.presets]

    async def get(self, name: str) -> dict[str, Any]:
        """The settings that are kept under this name."""
        from corral.contract import corral_pb2 as pb

        reply = await self._connection.call("GetPreset", pb.PresetRequest(name=name))
        found: dict[str, Any] = json.loads(reply.value)
        return found

    async def remove(self, name: str) -> PresetView:
        from corral.contract import corral_pb2 as pb
        from corral.contract.read_views import read

        request = pb.PresetRequest(name=name)
        found: PresetView = read(await self._connection.call("RemovePreset", request))
        return found


class Presets:
    """`client.presets` of a Client. See AsyncPresets for what each method does."""

    def __init__(
        self,
        presets: Callable[[], AsyncPresets],
        call: Callable[[Coroutine[Any, Any, Any]], Any],
    ) -> None:
        self._presets, self._call = presets, call

    def save(self, name: str, base: Mapping[str, Any]) -> PresetView:
        found: PresetView = self._call(self._presets().save(name, base))
        return found

    def list(self) -> list[PresetView]:
        found: list[PresetView] = self._call(self._presets().list())
        return found

    def get(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self._call(self._presets().get(name))
        return found

    def remove(self, name: str) -> PresetView:
        found: PresetView = self._call(self._presets().remove(name))
        return found
