"""Bit for bit what FlashInfer's own Python path gives, on the same compiled kernels.

``FP4AOT_FLASHINFER_BUNDLE`` names the folder that ``tests/flashinfer_beside/build.py`` made of the
objects of the wheel that is tested. FlashInfer is imported last of all, into the process in which
this package has run already: the two must not disturb each other.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
import torch
from gpusuite import draw, factors, grouped, memory, mixture
from gpusuite.compare import as_tuple
from gpusuite.compare import assert_equal as assert_same
from gpusuite.draw import BF16, FP8, FP16
from gpusuite.wheel import did_not_run

import fp4aot

pytestmark = [
    pytest.mark.subject("FlashInfer's Python path"),
    pytest.mark.needs("fp4_quantize", "mm_fp4", "nvfp4_kv_quantize"),
]

VARIABLE = "FP4AOT_FLASHINFER_BUNDLE"
AGAINST = "elements, FlashInfer's own Python path"
LAYOUTS = {"128x4": (True, False), "8x4": (True, True), "linear": (False, False)}
RECIPES = (None, (448, 0, False), (256, 0, True), (448, 1, True), (256, 1, False))

every_dtype = pytest.mark.parametrize("dtype", [BF16, FP16, FP8], ids=draw.name_of)
halves = pytest.mark.parametrize("dtype", [BF16, FP16], ids=draw.name_of)
every_layout = pytest.mark.parametrize("layout", LAYOUTS)
# FlashInfer 0.7.2 cannot quantize float8 from 1024 rows on.
SHAPES = ((1, 64), (33, 96), (129, 1056), (1000, 2880), (1023, 512))


@pytest.fixture(scope="module")
def flashinfer():
    bundle = os.environ.get(VARIABLE)
    if not bundle:
        did_not_run(f"{VARIABLE} names no bundle of FlashInfer (tests/flashinfer_beside/build.py)")
    if importlib.util.find_spec("flashinfer_beside") is None:
        did_not_run("tests/flashinfer_beside is not at hand")
    from flashinfer_beside import use

    module = use.import_flashinfer(Path(bundle))
    memory.poison()
    capability = torch.cuda.get_device_capability(0)
    # Where lowered kernels run on a Hopper, FlashInfer must take it for a Blackwell.
    with use.as_capability(*((12, 0) if fp4aot._MANIFEST.is_lowered else capability)):
        yield module


def assert_equal(details, against, ours, theirs):
    """Compare bits; FlashInfer may return block scales in another shape."""
    theirs = tuple(
        right if right.shape == left.shape else right.reshape(left.shape)
        for left, right in zip(as_tuple(ours), as_tuple(theirs), strict=True)
    )
    assert_same(details, against, as_tuple(ours), theirs)


def recipes(flashinfer, recipe):
    """Return a recipe as ours and as FlashInfer's."""
    if recipe is None:
        return None, None
    from flashinfer.quantization import nvfp4_quantization_utils as utils

    ours = fp4aot.NVFP44Over6Config(*recipe)
    e4m3_max, mode, fast = recipe
    theirs = utils.NVFP44Over6Config(
        e4m3_max=e4m3_max, err_mode=utils.NVFP44Over6ErrMode(mode), err_use_fast_math=fast
    )
    return ours, theirs


@every_dtype
@every_layout
@pytest.mark.parametrize("format_", ["NVFP4", "MXFP4"])
def test_fp4_quantize(details, flashinfer, format_, layout, dtype):
    block = (16, False) if format_ == "NVFP4" else (32, True)
    for rows, columns in SHAPES:
        with details.case(f"{rows} x {columns}"):
            x = draw.values(rows, columns, dtype=dtype, seed=rows)
            for scale, inversed in (
                (draw.global_scale(x), False),
                (1 / draw.global_scale(x), True),
                (448 * 6 / x.float().abs().amax(dim=1), False),
            ):
                arguments = (x, scale, *block, *LAYOUTS[layout], inversed)
                theirs = flashinfer.fp4_quantize(*arguments, nvfp4_4over6=None)
                assert_equal(details, AGAINST, fp4aot.fp4_quantize(*arguments), theirs)
    for name, x in {
        "3-D": draw.values(3, 43, 96, dtype=dtype),
        "column major": draw.values(160, 96, dtype=dtype).t(),
        "odd values": draw.special(129, 1056, dtype),
    }.items():
        with details.case(name):
            arguments = (x, draw.global_scale(draw.values(4, 64)), *block, *LAYOUTS[layout])
            theirs = flashinfer.fp4_quantize(*arguments, nvfp4_4over6=None)
            assert_equal(details, AGAINST, fp4aot.fp4_quantize(*arguments), theirs)


@halves
@every_layout
@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_nvfp4_quantize(details, flashinfer, recipe, layout, dtype):
    ours, theirs = recipes(flashinfer, recipe)
    number = list(LAYOUTS).index(layout)
    e4m3_max = fp4aot.nvfp4_e4m3_max(ours)
    for rows, columns in ((33, 96), (129, 1056), (1024, 2048)):
        with details.case(f"{rows} x {columns}"):
            x = draw.values(rows, columns, dtype=dtype, seed=rows)
            scale = draw.global_scale(x, e4m3_max)
            assert_equal(
                details,
                AGAINST,
                fp4aot.nvfp4_quantize(x, scale, fp4aot.SfLayout(number), nvfp4_4over6=ours),
                flashinfer.nvfp4_quantize(
                    x, scale, flashinfer.SfLayout(number), nvfp4_4over6=theirs
                ),
            )
        with details.case(f"{rows} x {columns}, a scale for each row"):
            keywords = {"per_token_activation": True}
            inverse = 1 / (e4m3_max * 6)
            assert_equal(
                details,
                AGAINST,
                fp4aot.nvfp4_quantize(
                    x, inverse, fp4aot.SfLayout(number), nvfp4_4over6=ours, **keywords
                ),
                flashinfer.nvfp4_quantize(
                    x, inverse, flashinfer.SfLayout(number), nvfp4_4over6=theirs, **keywords
                ),
            )


@halves
def test_nvfp4_quantize_with_shuffled_rows(details, flashinfer, dtype):
    for rows, columns in ((128, 64), (1024, 2048)):
        x = draw.values(rows, columns, dtype=dtype)
        scale = draw.global_scale(x)
        ours = fp4aot.nvfp4_quantize(x, scale, do_shuffle=True)
        theirs = flashinfer.nvfp4_quantize(x, scale, do_shuffle=True, nvfp4_4over6=None)
        assert_equal(details, AGAINST, ours, theirs)


@halves
@every_layout
def test_mxfp4_quantize(details, flashinfer, layout, dtype):
    number = list(LAYOUTS).index(layout)
    for rows, columns in SHAPES:
        x = draw.values(rows, columns, dtype=dtype, seed=rows)
        ours = fp4aot.mxfp4_quantize(x, sfLayout=fp4aot.SfLayout(number))
        theirs = flashinfer.mxfp4_quantize(x, sfLayout=flashinfer.SfLayout(number))
        assert_equal(details, AGAINST, ours, theirs)


@pytest.mark.parametrize("dtype", [torch.uint8, BF16], ids=draw.name_of)
def test_block_scale_interleave(details, flashinfer, dtype):
    for shape in ((33, 5), (130, 64), (3, 129, 7)):
        scales = torch.randint(1, 256, shape, device="cuda").to(dtype)
        assert_equal(
            details,
            AGAINST,
            fp4aot.block_scale_interleave(scales),
            flashinfer.block_scale_interleave(scales),
        )


@halves
@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_nvfp4_batched_quantize(details, flashinfer, recipe, dtype):
    ours, theirs = recipes(flashinfer, recipe)
    for shape in ((1, 7, 64), (3, 129, 1088), (4, 256, 512)):
        with details.case(str(shape)):
            a = draw.values(*shape, dtype=dtype)
            scale = draw.global_scale(a, fp4aot.nvfp4_e4m3_max(ours))
            assert_equal(
                details,
                AGAINST,
                fp4aot.nvfp4_batched_quantize(a, scale, nvfp4_4over6=ours),
                flashinfer.nvfp4_batched_quantize(a, scale, nvfp4_4over6=theirs),
            )


@halves
@pytest.mark.parametrize("recipe", RECIPES, ids=str)
@pytest.mark.parametrize(
    "function", ["scaled_fp4_grouped_quantize", "silu_and_mul_scaled_nvfp4_experts_quantize"]
)
def test_experts(details, flashinfer, function, recipe, dtype):
    """Whole matrices without padding: FlashInfer leaves the rest as it was."""
    ours, theirs = recipes(flashinfer, recipe)
    for experts, rows, columns in ((1, 128, 128), (4, 256, 1024)):
        with details.case(f"{experts} x {rows} x {columns}"):
            a = draw.values(experts, rows, columns, dtype=dtype)
            mask = torch.full((experts,), rows, dtype=torch.int32, device="cuda")
            scale = fp4aot.nvfp4_e4m3_max(ours) * 6 / a.float().abs().amax(dim=(1, 2))
            got = getattr(fp4aot, function)(a, mask, scale, nvfp4_4over6=ours)
            want = getattr(flashinfer, function)(a, mask, scale, nvfp4_4over6=theirs)
            assert_equal(details, AGAINST, got, want)


@halves
def test_kv_cache(details, flashinfer, dtype):
    for rows, columns in ((1, 64), (129, 128), (4096, 576)):
        x = draw.values(rows, columns, dtype=dtype)
        scale = 1 / draw.global_scale(x)
        quantized = fp4aot.nvfp4_kv_quantize(x, scale)
        assert_equal(details, AGAINST, quantized, flashinfer.nvfp4_kv_quantize(x, scale))
        assert_equal(
            details,
            AGAINST,
            fp4aot.nvfp4_kv_dequantize(*quantized, scale, dtype),
            flashinfer.nvfp4_kv_dequantize(*quantized, scale, dtype),
        )


@pytest.mark.parametrize("case", [0, 2], ids=["NHD", "HND"])
def test_paged_kv_cache(details, flashinfer, case):
    *arguments, tokens, dtype, layout = draw.moved(
        draw.calls("nvfp4_kv_dequantize_paged")[case].arguments
    )
    k, v, k_scales, v_scales, tables, lengths, k_scale, v_scale = arguments
    shapes = [t.shape for t in torch.ops.fp4aot.nvfp4_kv_dequantize_paged(
        *arguments, tokens, dtype, layout)]  # fmt: skip
    results = []
    for module in (fp4aot, flashinfer):
        outputs = [torch.full(s, -7.0, dtype=dtype, device="cuda") for s in shapes]
        module.nvfp4_kv_dequantize_paged(
            *((k, v), (k_scales, v_scales), tables, lengths, k_scale, v_scale, *outputs),
            kv_layout=("NHD", "HND")[layout],
        )
        results.append(tuple(outputs))
    assert_equal(details, AGAINST, *results)


@pytest.mark.needs("nvfp4_quantize_append_paged_kv_cache")
@pytest.mark.parametrize("case", [0, 1], ids=["NHD", "HND"])
def test_appending_to_a_paged_kv_cache(details, flashinfer, case):
    *arguments, k_scale, v_scale, layout = draw.moved(
        draw.calls("nvfp4_quantize_append_paged_kv_cache")[case].arguments
    )
    key, value, rows, positions, k, v, k_scales, v_scales, *pages = arguments
    results = []
    for append in (
        fp4aot.nvfp4_quantize_append_paged_kv_cache,
        flashinfer.page.nvfp4_quantize_append_paged_kv_cache,
    ):
        caches = [memory.poisoned_like(one) for one in (k, v, k_scales, v_scales)]
        append(
            *(key, value, rows, positions, tuple(caches[:2]), tuple(caches[2:]), *pages),
            *(k_scale, v_scale, ("NHD", "HND")[layout]),
        )
        results.append(tuple(memory.raw(cache) for cache in caches))
    assert_equal(details, AGAINST, *results)


@halves
def test_mm_fp4(details, flashinfer, dtype):
    """FlashInfer's default tactic is ours."""
    for m, n, k in ((1, 32, 64), (7, 96, 128), (129, 384, 1088), (1000, 1056, 2048),
                    (4096, 2048, 4096)):  # fmt: skip
        with details.case(f"{m} x {n} x {k}"):
            a, b, a_scales, b_scales, alpha = factors.draw(m, n, k)
            theirs = flashinfer.mm_fp4(
                a, b, a_scales, b_scales.t(), alpha, out_dtype=dtype, backend="cutlass"
            )
            ours = fp4aot.mm_fp4(a, b, a_scales, b_scales.t(), alpha, out_dtype=dtype)
            assert_equal(details, AGAINST, ours, theirs)


@halves
def test_a_quantized_product(details, flashinfer, dtype):
    x, weight = draw.values(130, 1024, dtype=dtype), draw.values(384, 1024, dtype=dtype, seed=1)
    scales = draw.global_scale(x), draw.global_scale(weight)
    alpha = 1 / (scales[0] * scales[1])
    results = []
    for module in (fp4aot, flashinfer):
        a, a_sf = module.nvfp4_quantize(x, scales[0])
        b, b_sf = module.nvfp4_quantize(weight, scales[1])
        results.append(module.mm_fp4(a, b.T, a_sf, b_sf.T, alpha, dtype, backend="cutlass"))
    assert_equal(details, AGAINST, *results)


def mix(module, call, fused, **keywords):
    """Call a package's `cutlass_fused_moe`; FlashInfer returns its output and three others."""
    tensors, options = call.positional(), dict(call.options)
    activation = module.ActivationType(options.pop("activation_type"))
    found = module.cutlass_fused_moe(
        *(*tensors[:5], call.dtype, list(tensors[5:])),
        **options,
        activation_type=activation,
        use_fused_finalize=fused,
        **keywords,
    )
    return found[0] if isinstance(found, list) else found


@pytest.mark.needs("cutlass_fused_moe")
class TestExperts:
    @halves
    @pytest.mark.parametrize("source", mixture.INPUTS)
    def test_cutlass_fused_moe(self, details, flashinfer, source, dtype):
        """Bit for bit where the experts' results are added up in order, and near it elsewhere."""
        for tokens, hidden, inter, experts, top_k in (
            (1, 256, 512, 8, 2),
            (16, 160, 96, 4, 2),
            (128, 512, 256, 32, 8),
            (300, 256, 512, 8, 2),
        ):
            if source == mixture.LINEAR and hidden % 64 != 0:
                continue  # refused here: FlashInfer reads these scales with another row length
            with details.case(f"{tokens} tokens, {hidden}/{inter}, {experts} choose {top_k}"):
                call = mixture.as_flashinfer_takes_it(
                    mixture.draw(tokens, hidden, inter, experts, top_k, source=source, dtype=dtype)
                )
                theirs = mix(flashinfer, call, False)
                assert_equal(details, AGAINST, mix(fp4aot, call, False), theirs)
                ours, theirs = (mix(each, call, True).double() for each in (fp4aot, flashinfer))
                error = float((ours - theirs).norm() / theirs.norm())
                details.error("fused sum, Frobenius norm relative to FlashInfer's", error)
                assert error < 1e-2

    @pytest.mark.parametrize("activation", list(mixture.PLAIN) + list(mixture.GATED))
    def test_activations(self, details, flashinfer, activation):
        # For a plain activation FlashInfer asks for scales of multiples of 64 rows.
        for biases in (False, True):
            call = mixture.draw(
                *(33, 256, 512, 8, 2), activation=activation, biases=biases, per_expert=biases
            )
            call = mixture.as_flashinfer_takes_it(call)
            theirs = mix(flashinfer, call, False)
            assert_equal(details, AGAINST, mix(fp4aot, call, False), theirs)

    def test_ranks_routings_and_profiles(self, details, flashinfer):
        whole = mixture.as_flashinfer_takes_it(mixture.draw(33, routing="padding", biases=True))
        count = torch.ops.fp4aot._cutlass_fused_moe_tactic_count(1, False, 0)
        for name, call, keywords in (
            ("padding", whole, {}),
            ("the second rank of experts", whole.shard(2, 1), {}),
            ("the second rank of tensors", whole.changed(tp_size=2, tp_rank=1), {}),
            ("profiles", whole, {"profile_ids": [3, count + 5]}),
        ):
            with details.case(name):
                theirs = mix(flashinfer, call, False, **keywords)
                assert_equal(details, AGAINST, mix(fp4aot, call, False, **keywords), theirs)

    def test_workspaces_are_of_one_size(self, flashinfer):
        from flashinfer.fused_moe import cutlass_fused_moe_workspace_size as theirs

        for tokens, experts, top_k in ((1, 8, 2), (300, 32, 8)):
            for fused in (False, True):
                sizes = [
                    function(
                        *(tokens, 256, 512, experts, top_k),
                        x_dtype=BF16,
                        weight_dtype=torch.int64,
                        use_fused_finalize=fused,
                    )
                    for function in (fp4aot.cutlass_fused_moe_workspace_size, theirs)
                ]
                assert sizes[0] == sizes[1]


@pytest.mark.needs(grouped.NVFP4)
@halves
def test_group_gemm_nvfp4_nt_groupwise(details, flashinfer, dtype):
    from flashinfer.gemm import group_gemm_nvfp4_nt_groupwise as theirs

    for rows, n, k in (((4,), 8, 128), ((20, 0, 300, 4), 136, 512), ((128, 256), 512, 1024)):
        for tiles in ({}, {"tile_n": 64, "tile_k": 256}, {"swap_ab": False}):
            with details.case(f"{list(rows)} rows, {n} x {k}, {tiles}"):
                call = grouped.draw(grouped.NVFP4, rows, n, k, dtype=dtype)
                got = fp4aot.group_gemm_nvfp4_nt_groupwise(
                    *call.factors(), **tiles, out_dtype=dtype
                )
                want = theirs(*call.factors(), **tiles, out_dtype=dtype)
                assert_equal(details, AGAINST, got, want)
