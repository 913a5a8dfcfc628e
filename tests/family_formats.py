"""Prompt formats over the chat templates in `tests/templates`, with a tokenizer that has their tags."""

import json
import re
import tempfile
from functools import cache
from pathlib import Path

from tokenizers import AddedToken

from engine.backends.prompt_format import PromptFormat
from tests.tiny import SPECIALS, make_tokenizer, save_format

TEMPLATES = Path(__file__).parent / "templates"
NAMES = sorted(file.stem for file in TEMPLATES.glob("*.jinja"))
_TAGS = re.compile(
    r"<\|[a-z_]+\|>|<｜[^｜]+｜>|\[/?[A-Z_]{3,}\]|</?(?:think|tool_call|tool_response|arg_key|arg_value)>|<sop>|\[gMASK\]"
)
# Tokens that the models have and that their templates do not write.
_MORE = ["<s>", "</s>", "<think>", "</think>", "<|constrain|>"]
# Tokens that are no control tokens to their tokenizers.
_ORDINARY = re.compile(r"</?(think|tool_call|tool_response|arg_key|arg_value)>")


def source(name: str) -> str:
    """A template of `tests/templates`."""
    return (TEMPLATES / f"{name}.jinja").read_text("utf-8")


def save_family(folder: Path, name: str) -> Path:
    """Writes all that a PromptFormat of this template reads; returns the folder."""
    template = source(name)
    save_format(folder, template)
    tokenizer = make_tokenizer()
    tags = dict.fromkeys([*_TAGS.findall(template), *_MORE])
    tokenizer.add_tokens(
        [AddedToken(tag, special=not _ORDINARY.match(tag), normalized=False) for tag in tags if tag not in SPECIALS]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    stops = [tokenizer.token_to_id(tag) for tag in ("<|user|>", "<|observation|>") if tag in tags]  # GLM's
    config = json.loads((folder / "config.json").read_text())
    end = "<|im_end|>" if "<|im_end|>" in template else "</s>"
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": [*stops, tokenizer.token_to_id(end)]}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": end, "bos_token": "<s>"}))
    return folder


@cache
def family_format(name: str) -> PromptFormat:
    """The format of a template of `tests/templates`."""
    with tempfile.TemporaryDirectory() as folder:
        return PromptFormat.load(save_family(Path(folder), name))
