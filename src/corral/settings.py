"""All settings: their defaults, bounds and sources. The only module that reads the environment.

A value comes from, in rising order: the default here, `corral.yaml` in the home, `CORRAL_*`
variables, a command-line flag. `corral config` shows the effective values and their sources.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Hashable, Iterator, Mapping
from keyword import iskeyword
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import platformdirs
import yaml
from msgspec import Meta, Struct

from corral import permissions
from corral.core.backends import Entry, SketchEntry
from corral.core.errors import InvalidSettings
from corral.core.worker import MOST_GPUS, DeclaredGPU, Name, Names, Places, Words

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
    environments_s: Annotated[float, Meta(ge=60)] = 2_592_000.0
    system_site_packages: bool = False
    isolate: bool = True
    read_paths: tuple[str, ...] = ()
    write_paths: tuple[str, ...] = ()
    model_paths: Places = ()
    task_types: Words = ()
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
    window_s: Seconds = 60.0
    cool_s: Annotated[float, Meta(gt=0, le=86_400)] = 10.0
    cool_max_s: Annotated[float, Meta(gt=0, le=86_400)] = 600.0


class LimitSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How much of anything may come in at once, and how long it may take."""

    body_bytes: Bytes = 64_000_000
    message_bytes: Bytes = 64 << 20
    frame_bytes: Annotated[int, Meta(ge=1 << 20)] = 8 << 20
    header_bytes: Bytes = 65_536
    headers: Count = 100
    header_s: Seconds = 10.0
    body_s: Seconds = 30.0
    keep_alive_s: Seconds = 30.0
    streams: Count = 5_000
    jobs: Count = 10_000
    page: Count = 1_000
    result_bytes: Bytes = 2_000_000_000
    labels: Count = 64
    variables: Count = 1_000
    requirements: Count = 1_000
    secrets: Count = 64
    inputs: Count = 256
    models: Count = 64
    arguments: Count = 10_000
    text: Annotated[int, Meta(ge=64, le=100_000)] = 512


class AssetSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Where inputs lie and artifacts go, beside the controller's own disk."""

    root: str = ""
    spellings: tuple[str, ...] = ()
    bucket: str = ""
    endpoint: str = ""
    region: str = "us-east-1"
    access_key: str = "S3_ACCESS_KEY"
    secret_key: str = "S3_SECRET_KEY"  # noqa: S105 - the name of a secret
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
    """What the controller does. Field comments are the documentation of `docs/settings.md`."""

    engines: Annotated[tuple[Literal["agents"], ...], Meta(min_length=1)] = ("agents",)
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
    backoff_max_s: Annotated[float, Meta(ge=0, le=86_400)] = 60.0
    output_limit: Bytes = 2_000_000_000
    document_limit: Bytes = 4_000_000
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
    notify_timeout_s: Seconds = 10.0
    notify_backoff_s: Seconds = 1.0
    notify_backoff_max_s: Seconds = 300.0
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


def client_address(environ: Mapping[str, str] | None = None) -> str | None:
    return (os.environ if environ is None else environ).get("CORRAL_ADDRESS")


def client_assets(home: Path | None = None) -> AssetSettings:
    """Where a client has the shared root, and what else it may be called."""
    return load(home).settings.assets


def client_token(environ: Mapping[str, str] | None = None) -> str | None:
    return (os.environ if environ is None else environ).get("CORRAL_TOKEN")


def secret_variable(name: str, environ: Mapping[str, str] | None = None) -> str | None:
    """The value that `corral secret set --from-env` takes."""
    return (os.environ if environ is None else environ).get(name)


def taken_invitation() -> str:
    """What `corral worker join` and `corral login` were given; nothing that is started sees it."""
    return os.environ.pop("CORRAL_INVITATION", "")


RESERVED = frozenset({"CORRAL_HOME", "CORRAL_ADDRESS", "CORRAL_TOKEN", "CORRAL_INVITATION"})


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
    sources = {key: "default" for key, _ in keys()}
    path = home / "corral.yaml"
    permissions.restore(str(path), permissions.READ_FILE)  # A job of this user may have shut it.
    for key, value in _flatten(_read_yaml(path)):
        values[key] = value
        sources[key] = str(path)
        _check(key, value, str(path))
    for key, value in _from_environ(environ):
        values[key] = value
        sources[key] = variable(key)
        _check(key, value, variable(key))
    for key, value in (flags or {}).items():
        if value is not None:
            values[key] = value
            sources[key] = "--engine" if key == "engines" else f"--{key.replace('_', '-')}"
            _check(key, value, sources[key])
    return Config(settings=msgspec.convert(_nest(values), Settings), sources=sources, home=home)


class _Loader(yaml.SafeLoader):
    """To YAML a bare `on` is a truth value; as a key, as in `notify`, it is a word here."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:bool":
                key.tag = "tag:yaml.org,2002:str"
        return super().construct_mapping(node, deep)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"{path} cannot be read: {error}.") from error
    try:
        parsed = _Loader(text).get_single_data()
    except yaml.YAMLError as error:
        line = " ".join(str(error).split())
        raise InvalidSettings(f"{path} is not valid YAML: {line}.") from error
    if parsed is None:
        return {}
    if not isinstance(parsed, dict):
        raise InvalidSettings(f"{path} must hold `key: value` lines, not a {_word(parsed)}.")
    return parsed


_SECTIONS = frozenset(key.partition(".")[0] for key, _ in keys() if "." in key)


def _flatten(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if key in _SECTIONS and not prefix and isinstance(value, dict):
            yield from _flatten(value, f"{key}.")
        else:
            yield f"{prefix}{key}", value


def _from_environ(environ: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    known = {variable(key): (key, kind) for key, kind in keys()}
    for name, text in sorted(environ.items()):
        if name in RESERVED or not name.startswith("CORRAL_"):
            continue
        if name not in known:
            close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.85)
            if close:
                raise InvalidSettings(f"There is no setting {name}. Did you mean {close[0]}?")
            continue
        key, kind = known[name]
        plain = get_args(kind)[0] if get_origin(kind) is Annotated else kind
        yield key, text if plain is str else _parse(name, text)


def _parse(name: str, text: str) -> Any:
    try:
        return _Loader(text).get_single_data()
    except yaml.YAMLError as error:
        raise InvalidSettings(f"{name} is not a valid value: {text!r}.") from error


def _check(key: str, value: Any, source: str) -> None:
    known = dict(keys())
    if key not in known:
        close = _closest(key, known)
        hint = f" Did you mean {close}?" if close else " `corral config` lists them all."
        raise InvalidSettings(f"{source}: there is no setting {key!r}.{hint}")
    try:
        msgspec.convert(value, known[key])
    except msgspec.ValidationError as error:
        reason = _plain(str(error), _choices(known[key]))
        raise InvalidSettings(
            f"{source}: {key} = {_without_passwords(value)!r} is not possible: "
            f"{reason[0].lower()}{reason[1:]}."
        ) from error


def _choices(kind: Any) -> list[str]:
    """The words that a setting may have, where it has a closed set of them."""
    if get_origin(kind) is Literal:
        return [str(one) for one in get_args(kind)]
    return [word for inner in get_args(kind) for word in _choices(inner)]


def _plain(reason: str, choices: list[str]) -> str:
    """A validation error in words that also those understand who do not write Python."""
    if choices and "enum value" in reason:
        wrong = re.search(r"enum value (.*?)( - at |$)", reason)
        said = wrong[1] if wrong else "it"
        return f"{said} is none of {', '.join(word or '(nothing)' for word in choices)}"
    reason = reason.replace("`", "").replace("array", "a list such as [a, b]")
    reason = reason.replace("Object missing required", "it lacks the required")
    reason = reason.replace("Object contains unknown", "it has an unknown")
    reason = reason.replace("object", "key: value pairs")
    reason = re.sub(
        r"str matching regex '\^https.*'",
        "an address such as http://127.0.0.1:7860, with username and password apart from it",
        reason,
    )
    return re.sub(
        r" - at \$\[?(\d*)\]?.*", lambda at: f" (in item {at[1]})" if at[1] else "", reason
    )


def _closest(key: str, known: Mapping[str, Any]) -> str | None:
    found = difflib.get_close_matches(key, list(known), n=1)
    return found[0] if found else None


def _nest(values: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in values.items():
        *parents, last = key.split(".")
        place = nested
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return nested


def _word(value: object) -> str:
    return {"list": "list", "str": "text"}.get(type(value).__name__, type(value).__name__)


_PASSED = re.compile(
    r"PATH|LANG|LC_.*|TZ|LD_LIBRARY_PATH|CUDA_.*|NVIDIA_.*|SSL_CERT_.*|(?i:[a-z]+_proxy)"
    # Without these no program starts on Windows, or finds others; os.environ has them in capitals.
    r"|SYSTEMROOT|SYSTEMDRIVE|WINDIR|COMSPEC|PATHEXT|NUMBER_OF_PROCESSORS|PROCESSOR_ARCHITECTURE"
    r"|PROGRAMDATA|PROGRAMFILES.*|COMMONPROGRAMFILES.*|ALLUSERSPROFILE"
)


def passed_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a job may inherit from the worker: how to find programs, the network and the clock."""
    environ = os.environ if environ is None else environ
    return {name: text for name, text in environ.items() if _PASSED.fullmatch(name)}


_AGENT = re.compile(
    r"CORRAL_.*|PYTHON.*|VIRTUAL_ENV|TMPDIR|TEMP|TMP|TERM|NO_COLOR|LOGNAME|SHELL|LD_.*|ROC.*|HIP_.*|HSA_.*"
)


def agent_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """What the agent on this machine inherits from its controller: settings and what it passes on,
    not whatever else was exported in the shell that started it."""
    environ = os.environ if environ is None else environ
    kept = {name: text for name, text in environ.items() if _AGENT.fullmatch(name)}
    for name in ("CORRAL_TOKEN", "CORRAL_INVITATION"):
        kept.pop(name, None)
    return {**build_environment(environ), **kept}


_BUILDING = re.compile(
    r"HOME|USER|XDG_.*|PIP_.*|UV_.*|GIT_.*|APPDATA|LOCALAPPDATA|USERPROFILE|USERNAME"
)


def build_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """What the builder of job environments inherits: as a job, and how to reach the registries."""
    environ = os.environ if environ is None else environ
    kept = {name: text for name, text in environ.items() if _BUILDING.fullmatch(name)}
    return {**passed_environment(environ), **kept}


def build_paths(environ: Mapping[str, str] | None = None) -> tuple[tuple[str, ...], str, str]:
    """What builds read in this home (settings of uv and pip), uv's cache, and its Pythons."""
    environ = os.environ if environ is None else environ
    home = Path(environ.get("HOME") or Path.home())
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    cache = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
    data = Path(environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    reads = [config / "uv", config / "pip", home / ".pip", home / ".netrc", home / ".pyenv"]
    pythons = environ.get("UV_PYTHON_INSTALL_DIR") or data / "uv" / "python"
    return tuple(map(str, reads)), environ.get("UV_CACHE_DIR") or str(cache / "uv"), str(pythons)


def proxies(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Proxies that programs started from here would use, and what they spare as `no_proxy`."""
    environ = os.environ if environ is None else environ
    names = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy", "no_proxy")
    return {
        name.lower(): text
        for name, text in environ.items()
        if name.lower() in names and text.strip()
    }


def quiet_grpc() -> None:
    """gRPC's own notes about forks are not for users: children are started, never forked. It reads
    these when it is loaded; what it then does at a fork can end the child with a fault."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
