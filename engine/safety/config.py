"""What people write to have something looked for: one `[[policies]]` table each in the server's TOML file.

    [[policies]]
    name = "keys"
    kind = "secrets"

A policy says what it looks for, where, and what happens then: it is recorded (`flag`), or nothing of it is let through
(`block`).
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from engine.safety.expression import parse_expression

Place = Literal["input", "tool_output", "output", "arguments"]
Action = Literal["flag", "block"]


def _checked(pattern: str) -> str:
    parse_expression(pattern)
    return pattern


class _Policy(BaseModel):
    """on: `input` (what comes with a create, messages), `tool_output`, `output` (text, reasoning), `arguments`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, max_length=64)
    on: frozenset[Place] = Field(frozenset({"input", "tool_output", "output", "arguments"}), min_length=1)
    action: Action = "block"


class PatternsPolicy(_Policy):
    """Regular expressions in RE2's syntax, each with an upper bound on what it matches."""

    kind: Literal["patterns"]
    patterns: list[Annotated[str, AfterValidator(_checked)]] = Field(min_length=1)
    ignore_case: bool = False


class SecretsPolicy(_Policy):
    """Keys and tokens in well-known formats."""

    kind: Literal["secrets"]


class ModelPolicy(_Policy):
    """A Hugging Face sequence-classification model: a label that scores its threshold or more is found.

    model: a folder, or an id of the hub. stride_chars: so much streamed text is put to it at a time, with as much of
    what came before.
    """

    kind: Literal["model"]
    model: str
    labels: dict[str, Annotated[float, Field(gt=0, le=1)]] = Field(min_length=1)
    stride_chars: int = Field(400, gt=0)


Policy = Annotated[PatternsPolicy | SecretsPolicy | ModelPolicy, Field(discriminator="kind")]


def _distinct(policies: list[Policy]) -> list[Policy]:
    names = [policy.name for policy in policies]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"two policies are named {min(twice)!r}")
    return policies


PolicyList = Annotated[list[Policy], AfterValidator(_distinct)]
