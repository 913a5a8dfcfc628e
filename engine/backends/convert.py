"""A GGUF file to a folder in Hugging Face's layout: `python -m engine.backends.convert FILE FOLDER MODEL_ID`.

Runs as a process of its own, because it imports torch and the server never does. Prints its progress as lines of
`fraction<TAB>what`. transformers takes about 17 s to read even a small GGUF; the folder loads in under a second, so
this is done once for a file.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig

from engine.backends.model_facts import NOTE_FILE


def convert(file: Path, folder: Path, model_id: str, *, has_weights: bool = True) -> None:
    """Write tokenizer, chat template, configuration and (bfloat16, safetensors) weights of `file` into `folder`.

    Raises what transformers raises for a file it cannot read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _report(0.05, "Reading the tokenizer")
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
    _report(0.25, "Reading the weights" if has_weights else "Reading the configuration")
    if has_weights:
        model = AutoModelForCausalLM.from_pretrained(
            file.parent,
            gguf_file=file.name,
            dtype=torch.bfloat16,
            quantization_config=GgufConfig(dequantize=True),
        )
        _report(0.95, "Writing the weights")
        model.save_pretrained(folder)
    else:
        AutoConfig.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
    (folder / NOTE_FILE).write_text(json.dumps({"model_id": model_id, "source": file.name}) + "\n", "utf-8")
    _report(1.0, "Converted")


def _report(fraction: float, what: str) -> None:
    print(f"{fraction}\t{what}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Convert a GGUF file to a folder in Hugging Face's layout.")
    parser.add_argument("file", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("model_id")
    parser.add_argument("--tokenizer-only", action="store_true", help="leave the weights out")
    options = parser.parse_args(arguments)
    convert(options.file, options.folder, options.model_id, has_weights=not options.tokenizer_only)


if __name__ == "__main__":
    main()
