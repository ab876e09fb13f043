"""Settings: where they come from, and what each mistake is answered with."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from corral import settings
from corral.core.errors import InvalidSettings


def test_later_sources_win_and_are_named(tmp_path: Path) -> None:
    (tmp_path / "corral.yaml").write_text("port: 1111\ngrpc_port: 2222\nworker: {cpus: 3}\n")
    environ = {"CORRAL_GRPC_PORT": "3333", "CORRAL_WORKER_NAME": "7", "CORRAL_HOME": "x"}
    config = settings.load(tmp_path, {"port": 4444, "host": None}, environ)
    assert (config.settings.port, config.settings.grpc_port) == (4444, 3333)
    assert (config.settings.worker.cpus, config.settings.worker.name) == (3.0, "7")
    assert config.sources["port"] == "--port"
    assert config.sources["grpc_port"] == "CORRAL_GRPC_PORT"
    assert config.sources["worker.cpus"] == str(tmp_path / "corral.yaml")
    assert config.sources["host"] == "default"


@pytest.mark.parametrize("page", ["settings.md", "notify.md"])
def test_what_the_pages_show_as_corral_yaml_is_taken(tmp_path: Path, page: str) -> None:
    text = (Path(__file__).parents[1] / "docs" / page).read_text("utf-8")
    shown = re.findall(r"```yaml\n(# corral\.yaml\n.*?)```", text, re.DOTALL)
    assert shown
    for block in shown:
        (tmp_path / "corral.yaml").write_text(block)
        assert set(settings.load(tmp_path, environ={}).sources.values()) != {"default"}


def test_on_is_a_key_in_the_file_and_in_a_variable(tmp_path: Path) -> None:
    (tmp_path / "corral.yaml").write_text(
        "notify:\n  - url: http://x/\n    on: [job_failed]\n  - url: http://y/\n"
    )
    first, second = settings.load(tmp_path, environ={}).settings.notify
    assert first.on == ("job_failed",)
    assert second.on == ("job_failed", "batch_done", "worker_lost")
    environ = {"CORRAL_NOTIFY": "[{url: 'http://x/', on: [batch_done]}]"}
    assert settings.load(tmp_path, environ=environ).settings.notify[0].on == ("batch_done",)
    (tmp_path / "corral.yaml").write_text("worker: {isolate: off}")
    assert settings.load(tmp_path, environ={}).settings.worker.isolate is False


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("prot: 8700", "there is no setting 'prot'. Did you mean port?"),
        ("worker: {cpu: 3}", "there is no setting 'worker.cpu'. Did you mean worker.cpus?"),
        ("port: many", "port = 'many' is not possible"),
        ("port: 70000", "port = 70000 is not possible"),
        ("grace_s: -1", "grace_s = -1 is not possible"),
        ("log_level: loud", "'loud' is none of debug, info, warning, error"),
        ("engines: [swarm]", "'swarm' is none of agents"),
        ("worker: {gpus: [{name: x}]}", "worker.gpus"),
        ("worker: 3", "worker"),
        ("- a\n- b", "must hold `key: value` lines"),
        ("a: [", "is not valid YAML"),
    ],
)
def test_a_mistake_in_the_file_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "corral.yaml").write_text(text)
    with pytest.raises(InvalidSettings) as refused:
        settings.load(tmp_path, environ={})
    assert sentence in refused.value.message
    assert "hunter2" not in refused.value.message
    assert "\n" not in refused.value.message
    assert "corral.yaml" in refused.value.message


def test_paths_of_jobs_begin_at_the_root_or_at_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    (tmp_path / "corral.yaml").write_text("worker: {read_paths: [~/data, /srv/models]}")
    worker = settings.load(tmp_path, environ={"CORRAL_WORKER_WRITE_PATHS": "['~/out']"}).settings
    assert worker.worker.read_paths == ("/home/ada/data", "/srv/models")
    assert worker.worker.write_paths == ("/home/ada/out",)
    (tmp_path / "corral.yaml").write_text("worker: {read_paths: [data]}")
    with pytest.raises(InvalidSettings, match=r"read_paths has 'data', which is no whole path"):
        settings.load(tmp_path, environ={})


def test_a_mistake_in_the_environment_names_the_variable(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="CORRAL_PORT: port = 'x'"):
        settings.load(tmp_path, environ={"CORRAL_PORT": "x"})


def test_a_misspelt_variable_is_named_and_others_are_left_alone(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match=r"CORRAL_PRT\. Did you mean CORRAL_PORT"):
        settings.load(tmp_path, environ={"CORRAL_PRT": "1"})
    settings.load(tmp_path, environ={"CORRAL_NIGHT_OWL": "1", "CORRAL_OUTPUT_DIR": "x"})


def test_mistakes_are_told_in_plain_words(tmp_path: Path) -> None:
    (tmp_path / "corral.yaml").write_text("worker: {labels: fast}")
    with pytest.raises(InvalidSettings, match="a list such as"):
        settings.load(tmp_path, environ={})
    (tmp_path / "corral.yaml").write_text("worker: {gpus: [{name: x, vram_gb: 1}, {name: y}]}")
    with pytest.raises(InvalidSettings, match="it lacks the required field vram_gb"):
        settings.load(tmp_path, environ={})


def test_declared_gpus(tmp_path: Path) -> None:
    (tmp_path / "corral.yaml").write_text("worker: {gpus: [{name: RTX 3090, vram_gb: 24}]}")
    (gpu,) = settings.load(tmp_path, environ={}).settings.worker.gpus
    assert (gpu.name, gpu.vram_gb) == ("RTX 3090", 24.0)


def test_the_webhooks_of_the_page_about_them(tmp_path: Path) -> None:
    """YAML takes the key `on` for true."""
    page = Path(__file__).parents[1] / "docs" / "notify.md"
    text = page.read_text("utf-8").partition("```yaml\n")[2].partition("```")[0]
    (tmp_path / "corral.yaml").write_text(text, "utf-8")
    (_, second) = settings.load(tmp_path, environ={}).settings.notify
    assert tuple(second.on) == ("job_failed", "worker_lost")


def test_backends_are_read_by_their_type_and_show_no_password(tmp_path: Path) -> None:
    (tmp_path / "corral.yaml").write_text(
        "worker: {backends: [{type: webui, username: me, password: hunter2}, {type: sketch}]}"
    )
    found = settings.load(tmp_path, environ={}).settings
    webui, sketch = found.worker.backends
    assert (webui.kind, sketch.kind) == ("webui", "sketch")
    assert webui.url == "http://127.0.0.1:7860"  # type: ignore[union-attr]
    assert "hunter2" not in str(settings.shown(found, "worker.backends"))
    assert settings.load(tmp_path / "none", environ={}).settings.worker.backends[0] == sketch


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ("{type: webgui}", "invalid value 'webgui'"),
        ("{type: webui, url: localhost}", "expected an address such as http://127.0.0.1:7860"),
        ("{type: comfyui, url: 'http://me:hunter2@x:8188'}", "username and password apart from it"),
        ("{type: webui, password: hunter2, usrname: me}", "unknown field usrname"),
        ("{type: sketch, url: 'http://x'}", "it has an unknown field url"),
        ("{url: 'http://x'}", "it lacks the required field type"),
    ],
)
def test_a_backend_that_cannot_be_is_refused(tmp_path: Path, entry: str, sentence: str) -> None:
    (tmp_path / "corral.yaml").write_text(f"worker: {{backends: [{entry}]}}")
    with pytest.raises(InvalidSettings) as refused:
        settings.load(tmp_path, environ={})
    assert sentence in refused.value.message
    assert "hunter2" not in refused.value.message


@pytest.mark.parametrize("key", ["limits.jobs", "backoff_max_s", "worker.task_types"])
def test_a_setting_that_went_is_told_so(tmp_path: Path, key: str) -> None:
    (tmp_path / "corral.yaml").write_text(f"{key}: 3\n")
    with pytest.raises(InvalidSettings, match=f"corral.yaml: {key} is no setting any more.*Remove"):
        settings.load(tmp_path, environ={})
    (tmp_path / "corral.yaml").unlink()
    with pytest.raises(InvalidSettings, match=f"{settings.variable(key)} is no setting any more"):
        settings.load(tmp_path, environ={settings.variable(key): "3"})
