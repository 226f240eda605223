"""FlashInfer, SGLang and vLLM use the compiled operators, and their users change nothing.

`fp4aot.integrations.flashinfer` has `enable`, `disable` and `status`. `fp4aot.integrations.sglang`
and `fp4aot.integrations.vllm` are entry points, by which those servers call it in each of their
processes. Importing any of it imports neither FlashInfer nor a server, and changes nothing.
"""

from fp4aot.integrations.errors import IntegrationError
from fp4aot.integrations.report import Kept, Report

__all__ = ["IntegrationError", "Kept", "Report"]
