"""Configs of hub ids, against a local fake hub."""

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from estimator.catalog import hub
from estimator.catalog.resolve import resolve_model
from estimator.specs.errors import SpecError
from estimator.specs.models.decoder import DecoderSpec

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 1000,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 256,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_dropout": 0.0,
    "attention_bias": False,
    "mlp_bias": False,
}
ANSWERS: dict[str, tuple[int, dict[str, str], bytes]] = {
    "org/tiny": (200, {}, json.dumps(CONFIG).encode()),
    "org/gated": (401, {"X-Error-Code": "GatedRepo"}, b""),
    "org/forbidden": (403, {}, b""),
    "org/hidden": (401, {"X-Error-Code": "RepoNotFound"}, b""),
    "org/absent": (404, {"X-Error-Code": "RepoNotFound"}, b""),
    "org/weights-only": (404, {"X-Error-Code": "EntryNotFound"}, b""),
    "org/busy": (503, {}, b""),
    "org/truncated": (200, {}, json.dumps(CONFIG).encode()[:80]),
    "org/binary": (200, {}, b"\xff\xfe\x00"),
    "org/list": (200, {}, b"[1, 2]"),
    "org/huge": (200, {}, b" " * (hub.LARGEST_CONFIG_BYTES + 10)),
    "org/moved": (307, {"Location": "/org/tiny/resolve/main/config.json"}, b""),
    "gpt-org/pythia-1bb": (404, {"X-Error-Code": "RepoNotFound"}, b""),
}


class FakeHub(http.server.BaseHTTPRequestHandler):
    requests: ClassVar[list[tuple[str, str | None]]] = []

    def do_GET(self) -> None:
        FakeHub.requests.append((self.path, self.headers.get("Authorization")))
        status, headers, body = ANSWERS[self.path.removeprefix("/").removesuffix("/resolve/main/config.json")]
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def fake_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str | None]]]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), FakeHub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    FakeHub.requests.clear()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setenv("TRAINCAST_CACHE_DIR", str(tmp_path / "cache"))
    for name in (
        "HF_TOKEN",
        "HF_HUB_OFFLINE",
        "TRANSFORMERS_OFFLINE",
        "http_proxy",
        "HTTP_PROXY",
        "all_proxy",
        "ALL_PROXY",
    ):
        monkeypatch.delenv(name, raising=False)
    yield FakeHub.requests
    server.shutdown()
    thread.join()
    server.server_close()


def refusal(hub_id: str) -> tuple[str, str]:
    with pytest.raises(SpecError) as caught:
        resolve_model(hub_id, overrides={})
    return caught.value.problems[0].code, str(caught.value)


def test_a_config_is_fetched_once_and_kept(fake_hub: list[tuple[str, str | None]], tmp_path: Path) -> None:
    first = resolve_model("org/tiny", overrides={})
    assert isinstance(first.spec, DecoderSpec)
    assert (first.spec.name, first.spec.hidden_size, first.recipe) == ("org/tiny", 64, None)
    second = resolve_model("org/tiny", overrides={})
    assert second.spec == first.spec
    assert len(fake_hub) == 1
    assert "hub_cache" in [note.code for note in second.notes]
    kept = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert [path.name for path in kept] == ["config.json"]


def test_another_cache_can_be_named(fake_hub: list[tuple[str, str | None]], tmp_path: Path) -> None:
    resolve_model("org/tiny", overrides={}, cache_dir=tmp_path / "mine")
    assert list((tmp_path / "mine").rglob("config.json"))
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("hub_id", "code", "words"),
    [
        ("org/gated", "hub_gated", "access is gated (HTTP 401): accept the licence"),
        ("org/forbidden", "hub_gated", "access is gated (HTTP 403)"),
        ("org/hidden", "hub_not_found", "no such repository"),
        ("org/absent", "hub_not_found", "no such repository"),
        ("org/weights-only", "hub_not_found", "has no config.json"),
        ("org/busy", "hub_failed", "HTTP 503"),
        ("org/truncated", "bad_config", "no valid JSON"),
        ("org/binary", "hub_broken", "no UTF-8 text"),
        ("org/list", "bad_config", "a list of 2 entries"),
        ("org/huge", "hub_too_large", "larger than 4 MiB"),
        ("gpt-org/pythia-1bb", "hub_not_found", "a bundled preset (pythia-1b"),
    ],
)
@pytest.mark.usefixtures("fake_hub")
def test_what_went_wrong_is_told_apart(hub_id: str, code: str, words: str) -> None:
    found, message = refusal(hub_id)
    assert found == code
    assert words in message


def test_a_token_is_sent_to_the_hub_only(
    fake_hub: list[tuple[str, str | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    resolve_model("org/moved", overrides={})
    assert [token for _, token in fake_hub] == ["Bearer secret", "Bearer secret"]  # moved on the same host
    assert "the token in HF_TOKEN has no access" in refusal("org/gated")[1]
    fake_hub.clear()
    port = hub.os.environ["HF_ENDPOINT"].rsplit(":", 1)[1]
    monkeypatch.setitem(
        ANSWERS, "org/elsewhere", (307, {"Location": f"http://localhost:{port}/org/tiny/resolve/main/config.json"}, b"")
    )
    resolve_model("org/elsewhere", overrides={})
    assert [token for _, token in fake_hub] == ["Bearer secret", None]


def test_offline(fake_hub: list[tuple[str, str | None]], monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_model("org/tiny", overrides={})
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    resolve_model("org/tiny", overrides={})
    code, message = refusal("org/gated")
    assert code == "hub_offline"
    assert "HF_HUB_OFFLINE" in message
    assert len(fake_hub) == 1
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    code, message = refusal("org/gated")
    assert code == "hub_offline"
    assert "offline: no answer from http://127.0.0.1:1/" in message
    monkeypatch.setenv("HF_ENDPOINT", "file:///etc")
    assert refusal("org/gated")[0] == "hub_offline"


def test_a_cache_that_cannot_be_written_is_a_note(
    fake_hub: list[tuple[str, str | None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    monkeypatch.setenv("TRAINCAST_CACHE_DIR", str(blocked))
    resolved = resolve_model("org/tiny", overrides={})
    assert "cache_not_written" in [note.code for note in resolved.notes]
    assert len(fake_hub) == 1


def test_bundled_models_need_no_hub(fake_hub: list[tuple[str, str | None]]) -> None:
    assert resolve_model("EleutherAI/pythia-1b", overrides={}).recipe is not None
    assert fake_hub == []
