"""settings.py: where values come from, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from engine.settings import Settings, load


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"LONGLOOP_{name.upper()}", raising=False)


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "longloop.toml"
    file.write_text("port = 1\npause_ttl_s = 2\nmax_lanes = 3\nallowed_origins = ['http://a']\n")
    monkeypatch.setenv("LONGLOOP_PORT", "11")
    monkeypatch.setenv("LONGLOOP_PAUSE_TTL_S", "12.5")
    settings = load(file, port=21)
    assert (settings.port, settings.pause_ttl_s, settings.max_lanes, settings.max_items) == (21, 12.5, 3, 20_000)
    assert settings.allowed_origins == ["http://a"]
    assert load().port == 11


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, 0) for name, field in Settings.model_fields.items() if name.startswith("max_") or name.endswith("_s")]
    + [("port", -1), ("port", 70_000), ("lifecycle", "nonsense"), ("no_such_setting", 1), ("keep_open", "perhaps")]
    + [("fetch_networks", ["10.0.0.0/99"]), ("web_search_url", "ftp://a/{query}"), ("web_search_url", "http://a/")],
)
def test_value_out_of_range_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=name):
        load(**{name: value})


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"ping_every_s": 5}, ("pong_timeout_s (20)", "ping_every_s (5)")),
        ({"high_water_events": 9, "max_log_events": 9}, ("high_water_events (9)", "max_log_events (9)")),
        ({"store": "none", "store_wait": True}, ("store_wait", "store is none")),
        ({"ledger": "none", "ledger_wait": True}, ("ledger_wait", "ledger is none")),
        ({"ledger": "none", "budget_tokens": 1}, ("budget_tokens", "ledger is none")),
        ({"code_interpreter": True, "code_timeout_s": 99}, ("code_timeout_s (99)", "hosted_timeout_s (60)")),
        ({"tokenizer": "default"}, ("tokenizer (default)", "backend local")),
        ({"backend": "script:demo", "token_cache": False}, ("token_cache", "tokenizer is empty")),
        ({"base_url": "http://a/v1"}, ("base_url (http://a/v1)", "backend is local")),
        ({"backend": "script:demo", "key_file": "k"}, ("key_file (k)", "backend is script:demo")),
        ({"context_window": 9}, ("context_window (9)", "backend is local")),
        ({"backend": "openai", "tokenizer": "default"}, ("tokenizer (default)", "backend is openai")),
        ({"models": {"a": {"tokenizer": "default"}}}, ("models.a: tokenizer (default)", "backend local")),
        ({"models": {"a": {"max_output_tokens": 1, "defaults": {"max_output_tokens": 2}}}}, ("models.a", "(2)", "(1)")),
    ],
)
def test_settings_that_contradict_each_other_are_refused_naming_both(values: dict[str, Any], names: list[str]) -> None:
    with pytest.raises(ValidationError) as caught:
        load(**values)
    message = caught.value.errors()[0]["msg"]
    assert all(name in message for name in names)


@pytest.mark.parametrize(
    "values",
    [
        {"ping_every_s": 20, "pong_timeout_s": 20},
        {"high_water_events": 9, "max_log_events": 10},
        {"store_wait": True},
        {"code_timeout_s": 99},
        {"ledger_wait": True, "budget_tokens": 1, "budget_tokens_per_principal": 1},
        {"backend": "script:demo", "tokenizer": "default", "token_cache": False},
        {"tokenizer": "default", "models": {"a": {"backend": "script:demo"}, "b": {}}},
        {"backend": "vllm", "base_url": "http://a/v1", "tokenizer": "default"},
        {"backend": "vllm", "base_url": "http://a/v1", "models": {"a": {"tokenizer": "x"}, "b": {"backend": "local"}}},
        {"stall_s": 1, "send_timeout_s": 60},
    ],
)
def test_settings_that_go_together_are_taken(values: dict[str, Any]) -> None:
    load(**values)


def test_unknown_setting_in_the_file_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "longloop.toml"
    file.write_text("ports = 1\n")
    with pytest.raises(ValidationError, match="ports"):
        load(file)


def test_model_has_what_it_says_and_the_rest_of_the_settings(tmp_path: Path) -> None:
    file = tmp_path / "longloop.toml"
    file.write_text(
        """
        threads = 3
        tokenizer = "default"
        [models.small]
        model = "org/small"
        aliases = ["s"]
        defaults = {temperature = 0.5}
        [models.demo]
        backend = "script:demo"
        """
    )
    settings = load(file, port=1)
    small, demo = settings.of_model("small"), settings.of_model("demo")
    assert list(settings.models) == ["small", "demo"]
    assert (small.backend, small.model, small.threads, small.tokenizer, small.port) == ("local", "org/small", 3, "", 1)
    assert (demo.backend, demo.tokenizer, demo.models) == ("script:demo", "default", {})


def test_settings_cannot_change() -> None:
    with pytest.raises(ValidationError):
        Settings().port = 5  # type: ignore[misc]


def test_every_setting_is_described_and_says_its_unit() -> None:
    for name, field in Settings.model_fields.items():
        assert field.description, name
        if field.annotation is float:
            assert name.endswith("_s"), name


def test_it_binds_to_loopback_unless_told() -> None:
    assert (Settings().host, Settings().allow_remote, Settings().allowed_origins) == ("127.0.0.1", False, [])
