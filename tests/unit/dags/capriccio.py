"""A stand-in for Capriccio: slices of its form from a stream that drifts,
and a BERT small enough to train on them.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

WORDS = 24  # of each mood at a time
STREAM_S = 1_240_000_000  # of the first text, in April 2009
DRIFT = 0.4  # of a slice's mood words are new in the next


def write_slices(folder: Path, count: int, train: int = 320, val: int = 80) -> Path:
    """``1_train.json``, ``1_val.json`` and so on. Words of one mood slowly give way to others."""
    rng = random.Random(1)
    for number in range(1, count + 1):
        first = int((number - 1) * DRIFT * WORDS)
        rows = [_row(rng, first, i) for i in range(train + val)]
        for part, of in (("train", rows[:train]), ("val", rows[train:])):
            text = "".join(json.dumps(row) + "\n" for row in of)
            (folder / f"{number}_{part}.json").write_text(text, encoding="utf-8")
    return folder


def _row(rng: random.Random, first: int, index: int) -> dict[str, object]:
    label = rng.choice((0, 4))
    mood = [f"{'good' if label else 'bad'}{first + rng.randrange(WORDS)}" for _ in range(3)]
    words = [*mood, *(f"word{rng.randrange(40)}" for _ in range(5))]
    rng.shuffle(words)
    return {"date": (STREAM_S + index) * 1000, "text": " ".join(words), "label": label}


def write_model(folder: Path, slices: int) -> Path:
    """A new BERT of one layer with a tokenizer that knows the words of so many slices."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    last = int((slices - 1) * DRIFT * WORDS) + WORDS
    words = [f"{mood}{i}" for mood in ("good", "bad") for i in range(last)] + [
        f"word{i}" for i in range(40)
    ]
    known = {word: i for i, word in enumerate(["[PAD]", "[UNK]", *words])}
    tokenizer = Tokenizer(WordLevel(known, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")
    fast.save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(known),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=128,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder
