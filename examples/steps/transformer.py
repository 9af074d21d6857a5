"""A causal transformer on sentences of unequal length, read byte by byte.

fleet check transformer.yaml
mpirun -n 3 --oversubscribe python -m fleet.run transformer.yaml
"""

import re
from pydoc_data.topics import topics

import numpy as np
from torch import nn
from torch.nn.functional import cross_entropy

from fleet.preprocess.base import RandomAccess

START = 256  # the token before the first byte of a sentence


class Sentences(RandomAccess):
    """The sentences of Python's language reference, as they come with Python."""

    def __init__(self):
        text = " ".join(" ".join(topics.values()).split())
        sentences = dict.fromkeys(re.split(r"(?<=[.:]) ", text))  # each once
        self.sentences = [sentence.encode() for sentence in sentences]

    def __len__(self):
        return len(self.sentences)

    def read(self, index):
        return {"tokens": np.array([START, *self.sentences[index]], np.int64)}

    def name(self, index):
        return f"sentence {index}"


def sentences(path):
    return Sentences()


class Transformer(nn.Module):
    def __init__(self, longest, width, layers, heads):
        super().__init__()
        self.tokens = nn.Embedding(START + 1, width)
        self.positions = nn.Embedding(longest, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, START)

    def forward(self, tokens, tokens_mask):
        """Return logits of the next byte at each position, (n, length, 256).

        Padding comes last, so that no byte of a sentence attends to it.
        """
        length = tokens.shape[1]
        causal = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        features = self.tokens(tokens) + self.positions.weight[:length]
        return self.head(self.layers(features, mask=causal, is_causal=True))


def network(input_shape, width=32, layers=2, heads=4):
    return Transformer(input_shape["tokens"][0], width, layers, heads)


def step(model, batch, training):
    tokens, mask = batch["tokens"], batch["tokens_mask"]
    logits = model(tokens, mask)[:, :-1]
    following, is_byte = tokens[:, 1:], mask[:, 1:].float()
    losses = cross_entropy(logits.transpose(1, 2), following % START, reduction="none")
    counts = is_byte.sum(1).clamp(min=1)
    is_right = (logits.argmax(2) == following) * is_byte
    return {
        "loss": (losses * is_byte).sum(1) / counts,
        "accuracy": is_right.sum(1) / counts,
    }
