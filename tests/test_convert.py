"""convert.py: the default model's file becomes a folder that PromptFormat and transformers load."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.backends.default_model import DEFAULT_MODEL
from engine.backends.families import SMOLLM2
from engine.backends.pretrained import resolve, tokenizer_folder
from engine.backends.prompt import PromptFormat
from engine.backends.vocabulary import Span

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def form() -> PromptFormat:
    return PromptFormat.load(tokenizer_folder(lambda what, fraction: None))


def test_the_default_model_is_converted_with_its_progress():
    seen: list[float] = []
    folder = resolve(DEFAULT_MODEL, lambda what, fraction: seen.append(fraction))
    assert (folder / "model.safetensors").stat().st_size == 269_060_552
    assert all(0 <= fraction <= 1 for fraction in seen)


def test_its_facts(form):
    assert (form.model_id, form.family, form.context_window, form.stop_ids) == (DEFAULT_MODEL, SMOLLM2, 8192, {2})
    assert form.encode([Span("<|im_start|>assistant\n", True)]) == form.header_ids
    assert form.close_ids == form.encode([Span("<|im_end|>\n", True)])


# Its vocabulary lacks some control characters and the bytes that begin U+40000 to U+BFFFF, where nothing is assigned.
TEXTS = st.text(st.characters(max_codepoint=0x3FFFF, exclude_categories=["Cs", "Cc"]), max_size=80)
CONTROLS = st.lists(st.sampled_from(["<|im_end|>", "<|im_start|>", "<repo_name>", "x"])).map("".join)


@settings(max_examples=200)
@given(TEXTS | CONTROLS)
def test_its_content_has_no_control_tokens_and_loses_nothing(form, text):
    ids = form.vocabulary.encode(text)
    assert not any(map(form.vocabulary.is_control, ids))
    assert b"".join(map(form.vocabulary.bytes_of, ids)).decode() == text


def test_the_server_side_never_imports_torch():
    code = (
        "import sys; from engine.backends.prompt import PromptFormat; from engine.backends.pretrained import *;"
        "PromptFormat.load(tokenizer_folder(lambda *_: None)); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
