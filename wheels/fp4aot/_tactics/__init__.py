"""Tactics of `mm_fp4`: the table, its file, FlashInfer's caches, and the measurement.

`fp4aot.tactics` is what users see. From the inside out: `buckets` and `table` (the data), `file`
(reading and writing), `wheel` (what a table must fit), `active` (what the operator uses),
`flashinfer_cache` (import); `shapes`, `measure`, `cuda_timer`, `progress` and the commands serve
`python -m fp4aot` and are imported by it alone.
"""
