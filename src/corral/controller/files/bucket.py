"""A bucket of an S3-compatible server, with the credentials that only the controller has.

Everybody else gets a URL for one object and one verb, signed here and good for a short time.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, Literal

from corral.controller.auth.vault import Vault
from corral.core.errors import InvalidSettings, StorageFailed
from corral.settings import AssetSettings

PUT_LIMIT = 5 << 30
"""What S3 takes in one piece. What is larger stays with the controller."""
SEEN_S = 60.0
"""For so long an object that was there is not asked for again."""
SEEN = 10_000
ACCESS_KEY, SECRET_KEY = "S3_ACCESS_KEY", "S3_SECRET_KEY"
"""The names of the secrets with the key's id and the key itself. No job can name them."""


class Bucket:
    def __init__(self, settings: AssetSettings, vault: Vault) -> None:
        self._settings, self._vault = settings, vault
        self._made: tuple[dict[str, str], Any] | None = None
        self._seen: dict[str, tuple[float, int]] = {}
        try:
            import obstore
        except ImportError as error:
            raise InvalidSettings(
                "assets.bucket is set, and the part that speaks S3 is not installed. Install "
                "corral[s3], or leave assets.bucket out."
            ) from error
        self._obstore: Any = obstore

    @property
    def uri(self) -> str:
        return self._settings.bucket.rstrip("/")

    def _store(self) -> Any:
        """With the credentials as the vault has them now: they may be set, or change, later."""
        keys = self._vault.values((ACCESS_KEY, SECRET_KEY))
        if self._made is None or self._made[0] != keys:
            from obstore.store import S3Store

            told: dict[str, Any] = {"region": self._settings.region}
            if endpoint := self._settings.endpoint:
                told["endpoint"] = endpoint
                told["client_options"] = {"allow_http": endpoint.startswith("http://")}
            store = S3Store.from_url(
                self.uri,
                access_key_id=keys[ACCESS_KEY],
                secret_access_key=keys[SECRET_KEY],
                retry_config={"max_retries": 2, "retry_timeout": timedelta(seconds=10)},
                **told,
            )
            self._made = (keys, store)
        return self._made[1]

    async def size(self, key: str) -> int | None:
        seen = self._seen.get(key)
        if seen is not None and time.monotonic() - seen[0] < SEEN_S:
            return seen[1]
        store = self._store()
        try:
            found = await self._obstore.head_async(store, key)
        except FileNotFoundError:
            self._seen.pop(key, None)
            return None
        except Exception as error:
            raise self._failed("asked", error) from None
        if len(self._seen) >= SEEN:
            self._seen.clear()
        self._seen[key] = (time.monotonic(), int(found["size"]))
        return int(found["size"])

    async def sign(self, verb: Literal["GET", "PUT"], key: str) -> str:
        self._seen.pop(key, None)
        life = timedelta(seconds=self._settings.url_s)
        try:
            url: str = await self._obstore.sign_async(self._store(), verb, key, life)
        except Exception as error:
            raise self._failed("asked to sign", error) from None
        return url

    async def read(self, key: str, start: int, end: int) -> AsyncIterator[bytes]:
        """Bytes of an object. What lies before them is read and left out: not every server says
        properly that it sends a part."""
        at = 0
        try:
            found = await self._obstore.get_async(self._store(), key)
            async for piece in found.stream(min_chunk_size=1 << 20):
                wanted = bytes(piece)[max(start - at, 0) : end - at]
                at += len(piece)
                if wanted:
                    yield wanted
                if at >= end:
                    return
        except FileNotFoundError:
            raise
        except Exception as error:
            raise self._failed("read", error) from None

    def _failed(self, asked: str, error: Exception) -> StorageFailed:
        # Its own words may hold a signed URL, so only their kind is told.
        return StorageFailed(
            f"The bucket {self.uri} could not be {asked} ({type(error).__name__}). See that its "
            f"server runs and that the secrets {ACCESS_KEY} and {SECRET_KEY} are right."
        )
