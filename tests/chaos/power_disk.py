"""A disk whose power can be cut: a file system of its own that forgets, in one moment, all that was
not synced. Nothing is simulated: ext4's own shutdown drops what it had not written, and the next
mount replays its journal as after any power cut."""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

from tests.crash.test_full_disk import SmallDisk
from tests.eventually import eventually

SHUTDOWN = 0x8004587D
"""The ioctl EXT4_IOC_SHUTDOWN."""
WITHOUT_FLUSH = 2


def unavailable() -> str:
    """Why there can be no such disk here, or nothing."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "disk")
        place.mkdir()
        try:
            disk = PowerDisk(place, 8)
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", b"") or str(error).encode()
            return f"no file system whose power can be cut: {said.decode('utf-8', 'replace')}"
        try:
            disk.cut()
        finally:
            disk.close()
    return ""


class PowerDisk(SmallDisk):
    def __init__(self, place: Path, size_mb: int) -> None:
        self.place, self.mounted = place, True
        self._ballast = place / "ballast"
        self._images = itertools.count()
        self._image = self._next_image()
        with self._image.open("wb") as file:
            file.truncate(size_mb << 20)
        mkfs = shutil.which("mkfs.ext4") or "/usr/sbin/mkfs.ext4"
        subprocess.run([mkfs, "-q", "-F", str(self._image)], check=True, capture_output=True)
        self._mount()

    def _next_image(self) -> Path:
        return self.place.with_name(f"{self.place.name}.{next(self._images)}.image")

    def _mount(self) -> None:
        # Without the heuristics that save programs which rename without a sync.
        options = "loop,noauto_da_alloc"
        command = ["mount", "-t", "ext4", "-o", options, str(self._image), str(self.place)]
        subprocess.run(command, check=True, capture_output=True)

    def cut(self) -> None:
        """Whoever used it is dead already. It is back at once, with what was synced, and with
        whatever else the kernel had come to write by itself."""
        folder = os.open(self.place, os.O_RDONLY)
        try:
            fcntl.ioctl(folder, SHUTDOWN, struct.pack("I", WITHOUT_FLUSH))
        finally:
            os.close(folder)
        self._unmount()
        # Somebody else's mount namespace may still hold the dead one: what is left is copied.
        left, self._image = self._image, self._next_image()
        copy = ["cp", "--sparse=always", str(left), str(self._image)]
        subprocess.run(copy, check=True, capture_output=True)
        left.unlink()
        self._mount()

    def _unmount(self) -> None:
        """Dying processes give their files back a moment later."""
        command = ["umount", str(self.place)]
        eventually(
            lambda: subprocess.run(command, check=True, capture_output=True),
            f"{self.place} is in use no more",
            ignoring=subprocess.CalledProcessError,
        )

    def close(self) -> None:
        self._unmount()
        self._image.unlink()


def roomy(place: Path, size_mb: int) -> PowerDisk:
    """With room for what half an hour writes, however small others are: here no disk runs full."""
    return PowerDisk(place, 1024)
