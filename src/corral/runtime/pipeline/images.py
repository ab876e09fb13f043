"""Images as bytes and back: PNG with what made them inside, and the digests they are known by."""

from __future__ import annotations

import hashlib
import io

from PIL import Image as Images
from PIL.Image import Image
from PIL.PngImagePlugin import PngInfo

from corral.core.images.pipeline import MOST_PIXELS

KEPT = ("RGB", "RGBA", "L")
"""Modes that a PNG gives back as they were."""
KINDS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
"""What is opened, whatever it is called: some of Pillow's other formats run programs."""
COMPRESSION = 4
"""Half the time of zlib's own choice, for a few per cent of size."""
Images.MAX_IMAGE_PIXELS = MOST_PIXELS
"""Pillow's own limit is below what servers make. Twice as much is a bomb to it."""
RECORD, DIGEST = "corral:record", "corral:record_digest"
"""Where a PNG has its record, and the digest of that."""


def plain(image: Image) -> Image:
    """In a mode that survives a PNG, so that its pixels are the same before and after."""
    if image.mode in KEPT:
        return image
    return image.convert("RGBA" if "A" in image.getbands() else "RGB")


def to_png(
    image: Image, text: dict[str, str] | None = None, *, compression: int = COMPRESSION
) -> bytes:
    inside = PngInfo()
    for name, value in (text or {}).items():
        inside.add_itxt(name, value)
    held = io.BytesIO()
    image.save(held, "PNG", pnginfo=inside, compress_level=compression)
    return held.getvalue()


def from_bytes(data: bytes) -> Image:
    """An image file of a usual kind; raises OSError where it is none."""
    try:
        image = Images.open(io.BytesIO(data), formats=KINDS)
        image.load()
        return plain(image)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # Pillow has many words for a damaged file, or a bomb
        raise OSError(f"{type(error).__name__}: {error}") from error


def pixel_sha256(image: Image) -> str:
    """Over mode, size and pixels: the same whatever file they lie in."""
    digest = hashlib.sha256(f"{image.mode} {image.width}x{image.height}\n".encode())
    digest.update(image.tobytes())
    return digest.hexdigest()
