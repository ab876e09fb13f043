"""How a controller is, in one word and a sentence: the same at every door."""

from __future__ import annotations

from corral.controller.loop import Loop
from corral.controller.queue import Queue
from corral.controller.store import Store


def condition(queue: Queue, store: Store, loop: Loop) -> tuple[str, str]:
    damage, full = store.snapshots.damage, loop.full
    trouble = " ".join(loop.fleet.trouble().values())
    worst = {"stopping": queue.stopping, "damaged": damage, "full": full, "degraded": trouble}
    word = next((word for word, is_so in worst.items() if is_so), "ok")
    return word, " ".join(filter(None, (damage, full, trouble)))
