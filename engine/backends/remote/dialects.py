"""How the servers that take and give token ids want to be asked, and what they answer.

| | Cerebras | vLLM | llama.cpp |
|---|---|---|---|
| path | /v1/completions | /v1/completions | /completion |
| ids wanted by | return_raw_tokens | return_token_ids | return_tokens |
| ids come as | choices[0].tokens | choices[0].token_ids | tokens |
| the end | finish_reason, usage, [DONE] | finish_reason, usage, [DONE] | stop |
| reused tokens | usage | usage, with --enable-prompt-tokens-details | timings |
"""

from typing import Final

from engine.backends.remote.dialect import Dialect
from engine.backends.remote.dialect_completions import VLLM, Cerebras
from engine.backends.remote.dialect_llama import LlamaCpp

_DIALECTS: Final[dict[str, Dialect]] = {dialect.name: dialect for dialect in (Cerebras(), VLLM(), LlamaCpp())}


def dialect_of(backend: str) -> Dialect | None:
    """The dialect of a backend's name; None for one that knows no token ids."""
    return _DIALECTS.get(backend)
