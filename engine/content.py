"""The content parts of messages, reasoning and outputs, and the base of all tagged values."""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


class Value(msgspec.Struct, frozen=True, omit_defaults=False, tag_field="type", kw_only=True):
    """Base of all parts and items: immutable, tagged by `type`."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) is None:
                msgspec.structs.force_setattr(self, name, UNSET)


class InputText(Value, tag="input_text", frozen=True):
    text: str


class TopLogprob(msgspec.Struct, frozen=True, gc=False):
    """A token that could have come, `bytes` its UTF-8: a token may hold a part of a character only."""

    token: str
    bytes: list[int]
    logprob: float


class TokenLogprob(msgspec.Struct, frozen=True, gc=False):
    """A token that came, the log-probability the model gave it, and the likeliest tokens in its place."""

    token: str
    bytes: list[int]
    logprob: float
    top_logprobs: list[TopLogprob] = []


class OutputText(Value, tag="output_text", frozen=True):
    text: str
    annotations: list[Any] = []
    logprobs: list[Any] = []


class Refusal(Value, tag="refusal", frozen=True):
    refusal: str


class SummaryText(Value, tag="summary_text", frozen=True):
    text: str


class ReasoningText(Value, tag="reasoning_text", frozen=True):
    text: str


class InputImage(Value, tag="input_image", frozen=True):
    image_url: str | UnsetType | None = UNSET
    file_id: str | UnsetType | None = UNSET
    detail: str | UnsetType | None = UNSET


class InputFile(Value, tag="input_file", frozen=True):
    file_data: str | UnsetType | None = UNSET
    file_id: str | UnsetType | None = UNSET
    file_url: str | UnsetType | None = UNSET
    filename: str | UnsetType | None = UNSET


class PlainText(Value, tag="text", frozen=True):
    text: str


class ComputerScreenshot(Value, tag="computer_screenshot", frozen=True):
    image_url: str | UnsetType | None = UNSET
    file_id: str | UnsetType | None = UNSET


Part = (
    InputText
    | OutputText
    | Refusal
    | SummaryText
    | ReasoningText
    | InputImage
    | InputFile
    | PlainText
    | ComputerScreenshot
)
Content = str | list[Part]


def text_of(content: Content) -> str:
    """The text of a content: parts that carry none (images, files) contribute nothing."""
    if isinstance(content, str):
        return content
    return "".join(
        part.refusal if isinstance(part, Refusal) else part.text
        for part in content
        if not isinstance(part, InputImage | InputFile | ComputerScreenshot)
    )
