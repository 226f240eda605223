"""`nvfp4_quantize_append_paged_kv_cache`, which writes in place."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from bad_inputs.arguments import HALF, elsewhere, empty, uint8
from bad_inputs.calls import BadInput, call

APPEND = "nvfp4_quantize_append_paged_kv_cache"
INT32, E4M3 = torch.int32, torch.float8_e4m3fn

append = partial(
    call,
    **dict.fromkeys(("append_key", "append_value"), uint8(3, 2, 64, dtype=HALF)),
    **dict.fromkeys(("batch_indices", "positions", "kv_indptr"), uint8(3, dtype=INT32)),
    **dict.fromkeys(("paged_k_cache", "paged_v_cache"), uint8(5, 4, 2, 32)),
    **dict.fromkeys(("k_scale_cache", "v_scale_cache"), uint8(5, 4, 2, 4, dtype=E4M3)),
    **{"kv_indices": uint8(5, dtype=INT32), "kv_last_page_len": uint8(2, dtype=INT32)},
    **{"k_scale": 0.5, "v_scale": 2.0, "kv_layout": 0},
)
"""Builds a valid call, 3 rows of 2 heads of 64 into 5 pages of 4 tokens, with changes."""


def bad(case: str, fragments: tuple[str, ...], **changes: Any) -> BadInput:
    return BadInput(case, APPEND, append(**changes), fragments)


def stacked(device: str) -> torch.Tensor:
    """Make pages whose strides are those of a half of a stacked cache."""
    # A view by as_strided: indexing a fake CUDA tensor needs a torch that is built for CUDA.
    return empty(device, 5, 2, 4, 2, 32).as_strided((5, 4, 2, 32), (512, 64, 32, 1))


_TURNED = {
    **{"paged_k_cache": uint8(5, 2, 4, 32), "paged_v_cache": uint8(5, 2, 4, 32)},
    **{"k_scale_cache": uint8(5, 2, 4, 4), "v_scale_cache": uint8(5, 2, 4, 4)},
}
_WIDE = uint8(3, 2, 96, dtype=HALF)
ACCEPTED = (
    (APPEND, append()),
    (APPEND, append(kv_layout=1, **_TURNED)),
    (APPEND, append(paged_k_cache=stacked, paged_v_cache=stacked)),
)
REFUSED = (
    bad("keys of bytes", ("'append_key'", "float16 or .*bfloat16"), append_key=uint8(3, 2, 64)),
    bad("rank", ("'append_key'", "3 dimensions"), append_key=uint8(3, 64, dtype=HALF)),
    bad("head_dim", ("'append_key'", "head_dim 96", "64, 128, 256 or 512"), append_key=_WIDE),
    bad(
        "values of another dtype",
        ("'append_value'", "bfloat16", "float16"),
        append_value=uint8(3, 2, 64, dtype=torch.bfloat16),
    ),
    bad("values of another shape", ("'append_value'", "append_key"), append_value=_WIDE),
    bad("64-bit requests", ("'batch_indices'", "int32"), batch_indices=uint8(3, dtype=torch.int64)),
    bad("one position", ("'positions'", r"\[3\], a position"), positions=uint8(1, dtype=INT32)),
    bad("layout", ("'kv_layout'", "got 2", "HND"), kv_layout=2),
    bad(
        "cache of values",
        ("'paged_k_cache'", "uint8"),
        paged_k_cache=uint8(5, 4, 2, 32, dtype=HALF),
    ),
    bad("scales", ("'v_scale_cache'", "4 scales a head"), v_scale_cache=uint8(5, 4, 2, 8)),
    bad("another number of heads", ("'append_key'", "kv_layout"), **_TURNED),
    bad("strides", ("'paged_v_cache'", "as K's"), paged_v_cache=stacked),
    bad("indices", ("'kv_indices'", "1 dimensions"), kv_indices=uint8(1, 5, dtype=INT32)),
    bad("indptr", ("'kv_indptr'", r"\[3\], one more than"), kv_indptr=uint8(2, dtype=INT32)),
    bad("last page", ("'kv_last_page_len'", "int32"), kv_last_page_len=uint8(2)),
    bad("k_scale", ("'k_scale'", "not positive"), k_scale=0.0),
    bad("v_scale", ("'v_scale'", "no finite number"), v_scale=float("inf")),
    bad(
        "cache elsewhere",
        ("'paged_v_cache'", "device"),
        paged_v_cache=elsewhere(uint8(5, 4, 2, 32)),
    ),
)
