"""A contact sheet: one HTML file that shows all images of a folder, small, with what made them.

It loads nothing from elsewhere. What comes from a plan or a worker is text in it, never markup.
"""

from __future__ import annotations

import base64
import errno
import io
import json
import os
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from corral.home import write_durably
from corral.sdk.images.record_words import described

NAME = "index.html"
SIDE = 256
"""Pixels of a thumbnail's longer side."""
LARGEST = 100_000_000
"""Pixels beyond which an image is linked and not opened."""
STYLE = """
:root { color-scheme: light dark; font: 14px/1.4 system-ui, sans-serif; }
body { margin: 1.5rem; }
h1 { font-size: 1.3rem; margin: 0; }
main { display: grid; grid-template-columns: repeat(auto-fill, minmax(16rem, 1fr)); gap: 1rem; }
p { margin: .3rem 0 1rem; }
figure { margin: 0; border: 1px solid #8885; border-radius: 6px; overflow: hidden; }
figure a { display: block; background: #8882; text-align: center; }
img { max-width: 100%; height: auto; vertical-align: bottom; }
figcaption { padding: .5rem .7rem; overflow-wrap: anywhere; }
figcaption b { font-weight: 600; display: block; }
dl { display: grid; grid-template-columns: auto 1fr; gap: 0 .7rem; margin: .3rem 0 0; }
dt { opacity: .6; } dd { margin: 0; }
"""
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""What a browser may load for it: what is in it."""
BEGINNING = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">"""


class SheetEntry(Struct, frozen=True):
    path: Path
    job_id: str
    worker: str
    card: dict[str, Any]


def read_card(path: Path) -> dict[str, Any]:
    """The replay card beside an image, or nothing where there is none that can be read."""
    try:
        found = json.loads(path.with_suffix(".json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def write(
    folder: Path, title: str, entries: Iterable[SheetEntry], *, overwrite: bool = False
) -> Path:
    """Replaces an older sheet; another page there is a FileExistsError, unless `overwrite`."""
    target = folder / NAME
    if not overwrite and os.path.lexists(target) and not _is_ours(target):
        said = "This page is no contact sheet; choose another folder, or replace it with --force"
        raise FileExistsError(errno.EEXIST, said, str(target))
    listed = list(entries)
    settings = [described(entry.card.get("record")) for entry in listed]
    common = _common(settings)
    figures = [
        _figure(folder, entry, {name: own[name] for name in own if name not in common})
        for entry, own in zip(listed, settings, strict=True)
    ]
    count = f"{len(figures)} image{'s' * (len(figures) != 1)}"
    alike = "".join(f" · {name} {value}" for name, value in common.items())
    page = "\n".join(
        [
            BEGINNING,
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
            f"<h1>{escape(title)}</h1><p>{count}{escape(alike)}</p><main>",
            *figures,
            "</main></body></html>",
        ]
    )
    write_durably(target, page.encode("utf-8", "replace"), 0o666)
    return target


def _is_ours(page: Path) -> bool:
    if page.is_symlink() or not page.is_file():
        return False
    with page.open("rb") as file:
        return file.read(len(BEGINNING)) == BEGINNING.encode()


def _common(settings: Sequence[dict[str, str]]) -> dict[str, str]:
    """What all have alike is told once; what is left is what they were made to show."""
    first, *others = settings or [{}]
    return {
        name: value
        for name, value in first.items()
        if all(one.get(name) == value for one in others)
    }


def _figure(folder: Path, entry: SheetEntry, settings: dict[str, str]) -> str:
    card = entry.card
    record = card.get("record") if isinstance(card.get("record"), dict) else {}
    assert isinstance(record, dict)
    prompt = str(record.get("positive", ""))
    facts = [
        *settings.items(),
        ("seed", card.get("seed", record.get("seed", ""))),
        ("worker", entry.worker or card.get("worker", "")),
        ("job", entry.job_id),
    ]
    told = "".join(
        f"<dt>{name}</dt><dd>{escape(str(value))}</dd>" for name, value in facts if value != ""
    )
    link = quote(entry.path.relative_to(folder).as_posix())
    shown = f'<img src="{_thumbnail(entry.path)}" alt="{escape(prompt)}" loading="lazy">'
    return (
        f'<figure><a href="{link}">{shown}</a>'
        f"<figcaption><b>{escape(prompt)}</b><dl>{told}</dl></figcaption></figure>"
    )


def _thumbnail(path: Path) -> str:
    """The image, small, as a part of the page; nothing where it is no PNG, whatever its name."""
    from PIL import Image

    try:
        with Image.open(path, formats=("PNG",)) as image:
            if image.width * image.height > LARGEST:
                return ""
            image.thumbnail((SIDE, SIDE))
            held = io.BytesIO()
            image.convert("RGB").save(held, "JPEG", quality=82)
    except Exception:  # whatever Pillow raises over a file that somebody damaged
        return ""
    return f"data:image/jpeg;base64,{base64.b64encode(held.getvalue()).decode()}"
