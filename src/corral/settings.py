"""All settings: defaults, bounds and sources. Outside of jobs only this and `variables` read the
environment.

A value comes from, in rising order: the default here, `corral.yaml` in the home, `CORRAL_*`
variables, a command-line flag. `corral config` shows the effective values and their sources.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from keyword import iskeyword
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import platformdirs
from msgspec import Meta, Struct

from corral import permissions
from corral.core.errors import InvalidSettings
from corral.core.images.backends import Entry, SketchEntry
from corral.core.worker import MOST_GPUS, DeclaredGPU, Name, Names, Places
from corral.settings_file import choices_of, parse, plain, read_file

Port = Annotated[int, Meta(ge=0, le=65535)]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Bytes = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=1, le=10_000_000)]


class WorkerSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """What this machine's worker offers and how it keeps house."""

    enabled: bool = True
    name: Name = ""
    cpus: Annotated[float, Meta(ge=0, le=1024)] = 0.0
    memory_gb: Annotated[float, Meta(ge=0, le=100_000)] = 0.0
    gpus: Annotated[tuple[DeclaredGPU, ...], Meta(max_length=MOST_GPUS)] = ()
    labels: Names = ()
    reserved_for: Literal["", "interactive"] = ""
    weight: Annotated[float, Meta(gt=0, le=1000)] = 1.0
    class_: Literal["", "high-memory", "low-latency", "cpu-only"] = msgspec.field(
        default="", name="class"
    )
    allow_code: bool = True
    warm_runners: Annotated[int, Meta(ge=0, le=1024)] = 0
    warm_idle_s: Seconds = 600.0
    environments_gb: Annotated[float, Meta(gt=0)] = 20.0
    assets_gb: Annotated[float, Meta(gt=0)] = 50.0
    system_site_packages: bool = False
    isolate: bool = True
    read_paths: tuple[str, ...] = ()
    write_paths: tuple[str, ...] = ()
    model_paths: Places = ()
    spawn: bool = False
    backends: Annotated[tuple[Entry, ...], Meta(max_length=16)] = (SketchEntry(),)


class RetentionSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How long ended jobs and their bytes are kept. Living jobs keep everything."""

    history_s: Annotated[float, Meta(ge=86_400)] = 2_592_000.0
    history_jobs: Annotated[int, Meta(ge=1)] = 100_000
    artifacts_s: Annotated[float, Meta(ge=3600)] = 2_592_000.0
    artifacts_gb: Annotated[float, Meta(gt=0)] = 100.0
    output_s: Annotated[float, Meta(ge=3600)] = 2_592_000.0
    output_gb: Annotated[float, Meta(gt=0)] = 20.0


class DiskSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """When the disk of the home counts as full, and what is set aside for that moment."""

    refuse_at: Annotated[float, Meta(ge=0.1, le=1.0)] = 0.95
    min_free_gb: Annotated[float, Meta(ge=0)] = 0.0
    reserve_mb: Annotated[float, Meta(ge=0, le=10_000)] = 64.0


class CircuitSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """When a worker that fails gets nothing more, and when it is tried again."""

    failures: Annotated[int, Meta(ge=1, le=10_000)] = 3
    cool_s: Annotated[float, Meta(gt=0, le=86_400)] = 10.0


class LimitSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How much may come in at once; `core.limits` has what nobody needs to set."""

    streams: Count = 5_000
    result_bytes: Bytes = 2_000_000_000
    inputs: Count = 256


class AssetSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Where inputs lie and artifacts go, beside the controller's own disk."""

    root: str = ""
    spellings: tuple[str, ...] = ()
    bucket: str = ""
    endpoint: str = ""
    region: str = "us-east-1"
    url_s: Seconds = 900.0
    artifacts: Literal["auto", "controller", "root", "bucket"] = "auto"


class Webhook(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An address that is told what happened, in corral.yaml."""

    url: str
    on: tuple[Literal["job_failed", "batch_done", "worker_lost"], ...] = (
        "job_failed",
        "batch_done",
        "worker_lost",
    )
    secret: str = ""
    """The name of the secret that signs what is sent."""
    labels: dict[str, str] = {}
    """Only of jobs that have all of these."""


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """What the controller does; `docs/settings.md` tells of each field."""

    engines: Annotated[tuple[Literal["agents", "processes"], ...], Meta(min_length=1)] = ("agents",)
    host: str = "127.0.0.1"
    advertise: str = ""
    discoverable: bool = True
    auth: Literal["invitation", "tailscale"] = "invitation"
    tailscale_allow: tuple[str, ...] = ()
    tls: Literal["auto", "always"] = "auto"
    port: Port = 8700
    grpc_port: Port = 50051
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["console", "json"] = "console"
    log_limit: Bytes = 100_000_000
    grace_s: Seconds = 30.0
    heartbeat_s: Seconds = 5.0
    cancel_grace_s: Annotated[float, Meta(ge=0, le=3600)] = 5.0
    shutdown_grace_s: Annotated[float, Meta(ge=0, le=86_400)] = 10.0
    aging_s: Seconds = 60.0
    keep_for_interactive: Annotated[int, Meta(ge=0, le=10_000)] = 0
    max_losses: Annotated[int, Meta(ge=0, le=100)] = 5
    backoff_s: Annotated[float, Meta(ge=0, le=3600)] = 1.0
    output_limit: Bytes = 2_000_000_000
    package_limit: Bytes = 2_000_000_000
    artifact_limit: Bytes = 20_000_000_000
    asset_limit: Bytes = 100_000_000_000
    assets: AssetSettings = AssetSettings()
    circuit: CircuitSettings = CircuitSettings()
    limits: LimitSettings = LimitSettings()
    retention: RetentionSettings = RetentionSettings()
    disk: DiskSettings = DiskSettings()
    inspectable: bool = False
    notify: tuple[Webhook, ...] = ()
    notify_secret: str = ""
    notify_give_up_s: Annotated[float, Meta(gt=0, le=30 * 86_400)] = 86_400.0
    notify_settle_s: Seconds = 5.0
    worker: WorkerSettings = WorkerSettings()


class Config(Struct, frozen=True):
    """Effective settings, where each came from, and the home they belong to."""

    settings: Settings
    sources: dict[str, str]
    home: Path


def default_home(environ: Mapping[str, str] | None = None) -> Path:
    environ = os.environ if environ is None else environ
    named = environ.get("CORRAL_HOME")
    return Path(named).expanduser() if named else Path(platformdirs.user_data_dir("corral"))


def client_address() -> str | None:
    return os.environ.get("CORRAL_ADDRESS")


def client_token() -> str | None:
    return os.environ.get("CORRAL_TOKEN")


def secret_variable(name: str) -> str | None:
    """The value that `corral secret set --from-env` takes."""
    return os.environ.get(name)


def taken_invitation() -> str:
    """What `corral worker join` and `corral login` were given; nothing that is started sees it."""
    return os.environ.pop("CORRAL_INVITATION", "")


FAST_PATHS = frozenset({"early_starts", "local_socket", "direct_call", "columns"})


def fast_paths(environ: Mapping[str, str] | None = None) -> frozenset[str]:
    """Those that are on: all but the ones `CORRAL_WITHOUT` names, or none with `all`. It is for
    tests and benches of Corral itself; nothing but the speed depends on it."""
    text = (os.environ if environ is None else environ).get("CORRAL_WITHOUT", "")
    named = frozenset(text.replace(",", " ").split())
    if unknown := named - FAST_PATHS - {"all"}:
        raise InvalidSettings(
            f"CORRAL_WITHOUT: there is no fast path {min(unknown)!r}, only all, "
            f"{', '.join(sorted(FAST_PATHS))}."
        )
    return frozenset() if "all" in named else FAST_PATHS - named


RESERVED = frozenset(
    {"CORRAL_HOME", "CORRAL_ADDRESS", "CORRAL_TOKEN", "CORRAL_INVITATION", "CORRAL_WITHOUT"}
)


_GONE_LIMITS = (
    "body_bytes message_bytes frame_bytes header_bytes headers header_s body_s keep_alive_s jobs "
    "page labels variables requirements secrets models arguments text"
)
REMOVED = {
    *("backoff_max_s", "document_limit"),
    *("notify_timeout_s", "notify_backoff_s", "notify_backoff_max_s"),
    *("circuit.window_s", "circuit.cool_max_s", "assets.access_key", "assets.secret_key"),
    *("worker.environments_s", "worker.task_types"),
    *(f"limits.{name}" for name in _GONE_LIMITS.split(" ")),
}
"""Settings of earlier versions that nobody had a reason to set."""


def keys(cls: type[Struct] = Settings, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting as a dotted key with its type."""
    hints = get_type_hints(cls, include_extras=True)
    for field in msgspec.structs.fields(cls):
        kind = hints[field.name]
        if isinstance(kind, type) and issubclass(kind, Struct):
            yield from keys(kind, f"{prefix}{field.encode_name}.")
        else:
            yield f"{prefix}{field.encode_name}", kind


def value_of(settings: Settings, key: str) -> Any:
    value: Any = settings
    for part in key.split("."):
        value = getattr(value, f"{part}_" if iskeyword(part) else part)
    return value


def shown(settings: Settings, key: str) -> Any:
    """The value as plain data, without the passwords in it."""
    return _without_passwords(msgspec.to_builtins(value_of(settings, key)))


def _without_passwords(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: "…" if name == "password" and one else _without_passwords(one)
            for name, one in value.items()
        }
    if isinstance(value, str):
        return re.sub(r"(?<=://)[^/@\s]*@", "…@", value)
    return [_without_passwords(one) for one in value] if isinstance(value, list | tuple) else value


def variable(key: str) -> str:
    return "CORRAL_" + key.replace(".", "_").upper()


def load(
    home: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """Effective settings, or InvalidSettings with one sentence that names the culprit."""
    environ = os.environ if environ is None else environ
    home = home or default_home(environ)
    values: dict[str, Any] = {}
    sources = dict.fromkeys(_KNOWN, "default")
    for key, value, source in _given(home / "corral.yaml", environ, flags or {}):
        _check(key, value, source)
        values[key], sources[key] = _at_home(key, value, source), source
    return Config(settings=msgspec.convert(_nest(values), Settings), sources=sources, home=home)


def _at_home(key: str, value: Any, source: str) -> Any:
    """Paths of jobs with what `~` stands for: the user's home that this worker runs in."""
    if key not in PATHS:
        return value
    paths = [os.path.expanduser(path) for path in value]
    for path in paths:
        if not (os.path.isabs(path) or path.startswith(("/", "\\"))):
            raise InvalidSettings(
                f"{source}: {key} has {path!r}, which is no whole path. Write it from the root of "
                "the disk, or from your home as ~/data."
            )
    return paths


PATHS = ("worker.read_paths", "worker.write_paths", "worker.model_paths")
_KNOWN = dict(keys())
_SECTIONS = frozenset(key.partition(".")[0] for key in _KNOWN if "." in key)


def _given(
    path: Path, environ: Mapping[str, str], flags: Mapping[str, Any]
) -> Iterator[tuple[str, Any, str]]:
    """Keys, values and where they come from; the last of a key counts."""
    permissions.restore(str(path), permissions.READ_FILE)  # A job of this user may have shut it.
    for key, value in _flatten(read_file(path)):
        yield key, value, str(path)
    for key, value in _from_environ(environ):
        yield key, value, variable(key)
    for key, value in flags.items():
        if value is not None:
            yield key, value, "--engine" if key == "engines" else f"--{key.replace('_', '-')}"


def _flatten(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if key in _SECTIONS and not prefix and isinstance(value, dict):
            yield from _flatten(value, f"{key}.")
        else:
            yield f"{prefix}{key}", value


def _from_environ(environ: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    known = {variable(key): (key, kind) for key, kind in _KNOWN.items()}
    removed = {variable(key) for key in REMOVED}
    for name, text in sorted(environ.items()):
        if name in RESERVED or not name.startswith("CORRAL_"):
            continue
        if name in removed:
            raise _no_more(name, "the environment")
        if name not in known:
            close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.85)
            if close:
                raise InvalidSettings(f"There is no setting {name}. Did you mean {close[0]}?")
            continue
        key, kind = known[name]
        plain = get_args(kind)[0] if get_origin(kind) is Annotated else kind
        yield key, text if plain is str else parse(name, text)


def _check(key: str, value: Any, source: str) -> None:
    if key in REMOVED:
        raise _no_more(key, source)
    if key not in _KNOWN:
        close = difflib.get_close_matches(key, list(_KNOWN), n=1)
        hint = f" Did you mean {close[0]}?" if close else " `corral config` lists them all."
        raise InvalidSettings(f"{source}: there is no setting {key!r}.{hint}")
    try:
        msgspec.convert(value, _KNOWN[key])
    except msgspec.ValidationError as error:
        reason = plain(str(error), choices_of(_KNOWN[key]))
        raise InvalidSettings(
            f"{source}: {key} = {_without_passwords(value)!r} is not possible: "
            f"{reason[0].lower()}{reason[1:]}."
        ) from error


def _no_more(name: str, source: str) -> InvalidSettings:
    return InvalidSettings(
        f"{source}: {name} is no setting any more, its default holds for everybody. Remove it from "
        "there, then start again."
    )


def _nest(values: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in values.items():
        *parents, last = key.split(".")
        place = nested
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return nested
