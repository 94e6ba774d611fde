"""The engine: a real model served from a paged cache.

Read in this order: `request` (what is served), `scheduler` (who runs next), `runner` (through the model),
`sampling` (from logits to tokens), `engine` (all of it), `contiguous` (the baseline without paging).
"""

from pagedkv_lab.engine.contiguous import ContiguousEngine
from pagedkv_lab.engine.engine import Engine
from pagedkv_lab.engine.models import LoadedModel, load_model
from pagedkv_lab.engine.parts import Parts
from pagedkv_lab.engine.report import EngineStats, StepReport
from pagedkv_lab.engine.request import CompletionOutput, RequestOutput
from pagedkv_lab.engine.sampling import SamplingParams

__all__ = [
    "CompletionOutput",
    "ContiguousEngine",
    "Engine",
    "EngineStats",
    "LoadedModel",
    "Parts",
    "RequestOutput",
    "SamplingParams",
    "StepReport",
    "load_model",
]
