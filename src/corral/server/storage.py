"""What a controller keeps in its home, opened: the journal proven and folded into a world."""

from __future__ import annotations

import gc
from contextlib import AsyncExitStack

from corral.controller.auth.tokens import Access, AttemptTokens, kept_secret
from corral.controller.auth.vault import Vault
from corral.controller.files.artifacts import Artifacts
from corral.controller.files.assets import Assets
from corral.controller.files.blobs import Blobs
from corral.controller.files.bucket import ACCESS_KEY, SECRET_KEY, Bucket
from corral.controller.history.listing import Listing
from corral.controller.journal.database import Journal
from corral.controller.output.spool import Spool
from corral.controller.store import Store
from corral.controller.world import World
from corral.home import Home
from corral.settings import Settings
from corral.shared_root import SharedRoot


class Storage:
    def __init__(self, settings: Settings, home: Home, stack: AsyncExitStack) -> None:
        self.journal = Journal(home.journal)
        self.world = World()
        self.store = Store(self.journal, self.world)
        stack.push_async_callback(self.store.close)
        self.store.recover()
        _calm_collector()
        self.spool = Spool(home.spool, settings.output_limit)
        stack.callback(self.spool.close)
        self.listing = Listing(self.store)
        stack.callback(self.listing.close)
        self.blobs = Blobs(home.blobs)
        self.tokens = AttemptTokens(kept_secret(home.transfer_key))
        self.access = Access(home.tokens, kept_secret(home.token))
        kept_back = (ACCESS_KEY, SECRET_KEY)
        self.vault = Vault(home.secrets, kept_back=kept_back if settings.assets.bucket else ())
        self.assets = Assets(
            self.blobs,
            limit=settings.asset_limit,
            root=SharedRoot(settings.assets.root),
            spellings=settings.assets.spellings,
            bucket=Bucket(settings.assets, self.vault) if settings.assets.bucket else None,
        )
        self.artifacts = Artifacts(
            self.blobs, self.assets, limit=settings.artifact_limit, where=settings.assets.artifacts
        )


def _calm_collector() -> None:
    """What is here stays, and most of what comes has no cycles: Python's collector would go through
    the whole queue again and again, for a tenth of the controller's time. The middle generation is
    collected while it is small: twenty young ones at once, of thousands of readers, take 0.2 s."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 1, 400)
