"""Tokenizers that tests make for themselves."""

from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from lr_sglang.engine.tokenizer import ModelTokenizer


def byte_level(text: str, size: int) -> Tokenizer:
    """One of bytes and of the words of a text."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    raw.train_from_iterator([text] * 9, trainer)
    return raw


def saved(
    raw: Tokenizer, folder: Path, special: Iterable[str], added: Iterable[str] = (), **whole: str
) -> ModelTokenizer:
    """As it is loaded from a folder, with special tokens and others that are added."""
    raw.add_special_tokens([AddedToken(token, special=True) for token in special])
    raw.add_tokens([AddedToken(token, special=False, normalized=False) for token in added])
    PreTrainedTokenizerFast(tokenizer_object=raw, **whole).save_pretrained(folder)
    return ModelTokenizer(str(folder))
