"""Tactics of `mm_fp4` and `cutlass_fused_moe`: table, file, FlashInfer's caches, measurement.

`fp4aot.tactics` is what users see. From the inside out: `buckets`, `entries` and `table` (the
data), `file` (reading and writing), `wheel` (what a table must fit), `active` (what the operators
use), `flashinfer_cache` and what it names (import); `shapes`, `trials`, `measure`, `measure_moe`,
`bench`, `cuda_timer`, `progress`, `report` and the commands serve `python -m fp4aot` and are
imported by it alone.
"""
