"""What a model's folder says about prompts: chat template, special tokens, context window, stop tokens, name."""

import re
from pathlib import Path
from typing import Any, Final

import msgspec

from engine.backends.template import TemplateError
from engine.backends.vocabulary import Vocabulary

NOTE_FILE: Final = "longloop.json"  # written beside a model that we converted: {"model_id": …}
_SPECIAL_TOKENS: Final = ("bos_token", "eos_token", "unk_token", "pad_token")
_HUB_FOLDER: Final = re.compile(r"models--(.+?)--(.+)")
_DEFAULT_WINDOW: Final = 2048  # for a configuration that names none; what models had when it was usual not to


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of one folder in Hugging Face's layout.

    `stops` are ids or the texts of tokens. `response_template` says how transformers reads the model's answers.
    """

    model_id: str
    template: str
    special_tokens: dict[str, str]
    context_window: int
    stops: frozenset[int | str]
    response_template: dict[str, Any] | None = None

    @classmethod
    def load(cls, folder: Path) -> "ModelFacts":
        """Read the folder's JSON files. Raises FileNotFoundError, or TemplateError when there is no chat template."""
        config = _read(folder / "config.json")
        text_config = config.get("text_config") or config  # models that also see have the language part apart
        tokenizer = _read(folder / "tokenizer_config.json", optional=True)
        generation = _read(folder / "generation_config.json", optional=True)
        special = {name: _token_text(tokenizer[name]) for name in _SPECIAL_TOKENS if tokenizer.get(name)}
        sources = (generation.get("eos_token_id"), text_config.get("eos_token_id"), special.get("eos_token"))
        return cls(
            model_id=_model_id(folder),
            template=_template(folder, tokenizer),
            special_tokens=special,
            context_window=text_config.get("max_position_embeddings") or _DEFAULT_WINDOW,
            stops=frozenset(stop for source in sources for stop in _as_list(source)),
            response_template=tokenizer.get("response_template"),
        )

    def stop_ids(self, vocabulary: Vocabulary) -> frozenset[int]:
        """The ids that end a turn of the model."""
        ids = (vocabulary.added.get(stop) if isinstance(stop, str) else stop for stop in self.stops)
        return frozenset(token_id for token_id in ids if token_id is not None)


def _read(file: Path, *, optional: bool = False) -> dict[str, Any]:
    if optional and not file.exists():
        return {}
    return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])


def _template(folder: Path, tokenizer: dict[str, Any]) -> str:
    file = folder / "chat_template.jinja"
    found = file.read_text("utf-8") if file.exists() else tokenizer.get("chat_template")
    if isinstance(found, list):  # several named ones: the one made for tools, if there is one
        by_name = {entry["name"]: entry["template"] for entry in found}
        found = by_name.get("tool_use") or by_name.get("default")
    if not found:
        raise TemplateError(f"The model in {folder} has no chat template, so it cannot hold a conversation.")
    return str(found)


def _model_id(folder: Path) -> str:
    note = _read(folder / NOTE_FILE, optional=True)
    if name := note.get("model_id"):
        return str(name)
    in_hub = _HUB_FOLDER.fullmatch(folder.resolve().parent.parent.name)
    return f"{in_hub[1]}/{in_hub[2]}" if in_hub else folder.resolve().name


def _token_text(token: Any) -> str:
    return token["content"] if isinstance(token, dict) else str(token)


def _as_list(value: Any) -> list[int | str]:
    return value if isinstance(value, list) else [] if value is None else [value]
