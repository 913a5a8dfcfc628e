"""A byte-level tokenizer small enough for tests, and the facts of the models that go with it. No torch."""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
STOP_ID = 2
VOCAB_SIZE = 320  # larger than the tokenizer's, as padded vocabularies are
CONTEXT_WINDOW = 4096
_CORPUS = ["hello world, the name of the tool is get_weather and its city is Paris", '{"name": "add", "arguments": {}}']


def make_tokenizer() -> Tokenizer:
    """283-odd ids: 3 specials, 256 bytes, some merges."""
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
    return tokenizer


def save_tokenizer(folder: Path) -> Path:
    """Writes tokenizer.json; returns its path."""
    file = folder / "tokenizer.json"
    make_tokenizer().save(str(file))
    return file
