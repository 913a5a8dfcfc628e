"""A model's folder for fast tests: a byte-level tokenizer of some 300 ids, a chat template, a configuration.

None of it needs torch; `tests.tiny_model` adds random weights.
"""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
STOP_ID = 2
VOCAB_SIZE = 320  # larger than the tokenizer's, as padded vocabularies are
CONTEXT_WINDOW = 4096
TAGS = ["<tool_call>", "</tool_call>", "<think>", "</think>", "<tool_response>", "</tool_response>"]
_CORPUS = ["hello world, the name of the tool is get_weather and its city is Paris", '{"name": "add", "arguments": {}}']

# As SmolLM2's: any role, no tools.
PLAIN = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SMOLLM = "{# a model named SmolLM #}" + PLAIN

# As Qwen's: tools, calls, and neighbouring outputs joined in one user turn.
HERMES = """\
{%- if tools %}{{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- '<tools>' }}{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
    {{- '\\n</tools> Answer in <tool_call></tool_call>.<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' + message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}{{- '}\\n</tool_call>' }}
        {%- endfor %}{{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""


def make_tokenizer(*, tags: bool = False) -> Tokenizer:
    """3 specials, 256 bytes, some merges; with `tags` the Hermes tags are tokens (not special ones, as in Qwen)."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS * 3, trainer)
    if tags:
        tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    return tokenizer


def save_tokenizer(folder: Path, *, tags: bool = False) -> Path:
    """Writes tokenizer.json; returns its path."""
    file = folder / "tokenizer.json"
    make_tokenizer(tags=tags).save(str(file))
    return file


def save_format(folder: Path, template: str = PLAIN, *, tags: bool = False) -> Path:
    """Writes all that a PromptFormat reads; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    save_tokenizer(folder, tags=tags)
    config = {"model_type": "llama", "max_position_embeddings": CONTEXT_WINDOW, "eos_token_id": STOP_ID}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "bos_token": "<|im_start|>"}))
    (folder / "chat_template.jinja").write_text(template)
    return folder
