"""Which names of FlashInfer's are replaced, and what other patches and processes see of it."""

from __future__ import annotations

# Names


def test_every_binding_is_replaced_and_given_back(with_flashinfer):
    """FlashInfer imported before, names bound elsewhere, two `enable()`, another import since."""
    with_flashinfer("""
import flashinfer
from flashinfer import fp4_quantize as quantize, mm_fp4
from flashinfer.fp4_quantization import nvfp4_block_scale_interleave

originals = {row.name: getattr(sys.modules[row.module], row.name) for row in ROWS}
signatures = {name: inspect.signature(function) for name, function in originals.items()}
before = bindings(originals.values())
assert ("__main__", "quantize") in before and len(before) > 2 * len(NAMES)
hooks = {hook.name for hook in table.TUNING_HOOKS}
rest = {
    name: value for name, value in vars(flashinfer).items()
    if ("flashinfer", name) not in before and name not in hooks
}

first = integration.enable()
assert first.active and not first.pending and not first.kept, first
assert set(first.replaced) == set(NAMES)
assert first.flashinfer == flashinfer.__version__ and not first.problems
assert not bindings(originals.values())
for place in before:
    module, name = place
    assert vars(sys.modules[module])[name] is not before[place], place
assert quantize is flashinfer.fp4_quantize is flashinfer.quantization.fp4_quantize
assert nvfp4_block_scale_interleave is flashinfer.block_scale_interleave
assert all(vars(flashinfer)[name] is value for name, value in rest.items())

# What callers look at besides calling.
assert mm_fp4.is_backend_supported("cutlass", 120) and mm_fp4.__name__ == "mm_fp4"
assert mm_fp4.__doc__ == originals["mm_fp4"].__doc__
def same_signatures():
    found = {row.name: getattr(sys.modules[row.module], row.name) for row in table.PUBLIC_FUNCTIONS}
    for name, function in found.items():
        assert inspect.signature(function) == signatures[name], name
        assert (function is originals[name]) is not integration.status().active, name
same_signatures()
assert quantize.fi_trace is originals["fp4_quantize"].fi_trace
flashinfer.get_fp4_quantization_module.cache_clear()

routed = bindings([flashinfer.fp4_quantize])
second = integration.enable()
assert second is first and bindings([flashinfer.fp4_quantize]) == routed

late = types.ModuleType("late")
sys.modules["late"] = late
exec("from flashinfer import fp4_quantize as mine, mm_fp4", vars(late))
assert late.mine is quantize

report = integration.disable()
assert not report.active and not report.problems
same_signatures()
assert late.mine is originals["fp4_quantize"] and late.mm_fp4 is originals["mm_fp4"]
after = bindings(originals.values())
assert {place: after[place] for place in before} == before
assert integration.disable().active is False

assert integration.enable().active and late.mine is not originals["fp4_quantize"]
assert not torch.cuda.is_initialized()
""")


def test_flashinfer_is_imported_later(with_flashinfer):
    """Enabling imports nothing; the import is patched; another one too; a thread waits."""
    with_flashinfer("""
import importlib, logging, threading
report = integration.enable()
assert report.active and report.pending and set(report.replaced) == set(NAMES), report
assert integration.status() == report
assert not [name for name in sys.modules if name.split(".")[0] == "flashinfer"]

messages = []
handler = logging.Handler()
handler.emit = lambda record: messages.append(record.getMessage())
logging.getLogger("fp4aot").addHandler(handler)
logging.getLogger("fp4aot").setLevel(logging.INFO)

# Importing and enabling at once, from many threads.
reports = []
threads = [threading.Thread(target=lambda: importlib.import_module("flashinfer"))]
threads += [threading.Thread(target=lambda: reports.append(integration.enable())) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join(600)
assert not any(thread.is_alive() for thread in threads) and len(reports) == 8

import flashinfer
assert flashinfer.__spec__.loader is flashinfer.__loader__
assert type(flashinfer.__loader__).__module__ != "fp4aot.integrations.import_hook"
status = integration.status()
assert status.active and not status.pending and set(status.replaced) == set(NAMES)
assert messages == [status.summary()], messages
x, scale = random(7, 256), torch.tensor([90.0])
assert same(flashinfer.fp4_quantize(x, scale), fp4aot.fp4_quantize(x, scale))
integration.disable()
assert is_flashinfers(flashinfer.fp4_quantize, x, scale)
""")


# Other patches, other processes


def test_another_patch_is_left_alone_and_named(with_flashinfer):
    with_flashinfer("""
import functools
import flashinfer
from flashinfer.quantization import fp4_quantization

other = types.ModuleType("another_plugin")
exec('''
import functools
def wrap(function):
    @functools.wraps(function)
    def wrapper(*arguments, **keywords):
        wrapper.calls += 1
        return function(*arguments, **keywords)
    wrapper.calls = 0
    return wrapper
''', vars(other))

# Before: where FlashInfer defines it, and where it only exports it.
theirs = fp4_quantization.block_scale_interleave = other.wrap(flashinfer.block_scale_interleave)
original_mm = [flashinfer.mm_fp4]  # A global name would be replaced too.
exported = flashinfer.mm_fp4 = other.wrap(flashinfer.mm_fp4)
report = integration.enable()
kept = {one.name: one.reason for one in report.kept}
assert kept == {"block_scale_interleave": "replaced by another_plugin before"}, kept
assert fp4_quantization.block_scale_interleave is theirs and flashinfer.mm_fp4 is exported
assert any("flashinfer.mm_fp4 was replaced by another_plugin" in one for one in report.problems)
assert flashinfer.gemm.mm_fp4 is not original_mm[0] and "mm_fp4" in report.replaced

# After: theirs calls ours, and goes on to do so.
original = integration._integration._routes[0].original
mine = flashinfer.fp4_quantize
wrapped = flashinfer.fp4_quantize = other.wrap(mine)
assert any("flashinfer.fp4_quantize was replaced by another_plugin" in one
           for one in integration.status().problems)
x, scale = random(7, 256), torch.tensor([90.0])
assert same(flashinfer.fp4_quantize(x, scale), fp4aot.fp4_quantize(x, scale)) and wrapped.calls == 1
report = integration.disable()
assert any("flashinfer.fp4_quantize was replaced by another_plugin" in one
           for one in report.problems)
assert flashinfer.fp4_quantize is wrapped and fp4_quantization.fp4_quantize is original
assert flashinfer.gemm.mm_fp4 is original_mm[0] and flashinfer.mm_fp4 is exported
assert same(flashinfer.fp4_quantize(x, scale), fp4aot.fp4_quantize(x, scale))
""")


def test_a_forked_process_keeps_it_and_a_spawned_one_starts_anew(with_flashinfer, tmp_path):
    child = tmp_path / "fp4aot_test_child.py"
    child.write_text("""
def look(queue):
    import torch
    import fp4aot
    from fp4aot.integrations import flashinfer as integration
    before = integration.status().active
    if not before:
        from fp4aot.integrations import sglang
        sglang.activate()
    import flashinfer
    x, scale = torch.ones(2, 32, dtype=torch.bfloat16), torch.tensor([90.0])
    same = torch.equal(flashinfer.fp4_quantize(x, scale)[0], fp4aot.fp4_quantize(x, scale)[0])
    queue.put((before, integration.status().active, same, torch.cuda.is_initialized()))
""")
    with_flashinfer(
        """
if __name__ == "__main__":
    import multiprocessing
    import flashinfer
    import fp4aot_test_child
    torch.set_num_threads(1)
    assert integration.enable().active
    for method, kept in (("fork", True), ("spawn", False)):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        process = context.Process(target=fp4aot_test_child.look, args=(queue,))
        process.start()
        assert queue.get(timeout=600) == (kept, True, True, False), method
        process.join()
        assert process.exitcode == 0
""",
        path=(tmp_path,),
    )
