"""Pictures for the chapters: one function each, numbers and plain structures in, a `Picture` out.

Knows matplotlib. Does not know models, engines or parts: who calls has asked them already. Every picture keeps to
the colours of `show.style` and says in one sentence (`says`) what there is to see, with the numbers.

    sizing      what a token weighs, what requests reserve, who fits      (arithmetic)
    memory      memory and footprint while an engine works                (series)
    tables      a block table as arrows, copy-on-write                    (tables and tokens)
    chains      hash chains, and where prompts part                       (tokens and keys)
    reads       which slots an attention read, in which order             (slots)
    schedule    who ran in which step                                     (step reports)
    latency     TTFT and TPOT of several engines                          (request outputs)
    hit_rate    hit rate by the capacity of the cache                     (points)
    course_map  which chapter builds what, and needs what                 (chapters)
"""

from pagedkv_lab.show.figures.chains import hash_chains
from pagedkv_lab.show.figures.course_map import course_map
from pagedkv_lab.show.figures.hit_rate import hit_rate_by_capacity
from pagedkv_lab.show.figures.latency import latency_distributions
from pagedkv_lab.show.figures.memory import footprint_over_time, memory_over_time
from pagedkv_lab.show.figures.reads import attention_reads
from pagedkv_lab.show.figures.schedule import schedule_gantt
from pagedkv_lab.show.figures.sizing import (
    bytes_per_token,
    contiguous_against_paged,
    memory_by_kind,
    users_that_fit,
    waste_by_block_size,
)
from pagedkv_lab.show.figures.tables import block_table_arrows, copy_on_write

__all__ = [
    "attention_reads",
    "block_table_arrows",
    "bytes_per_token",
    "contiguous_against_paged",
    "copy_on_write",
    "course_map",
    "footprint_over_time",
    "hash_chains",
    "hit_rate_by_capacity",
    "latency_distributions",
    "memory_by_kind",
    "memory_over_time",
    "schedule_gantt",
    "users_that_fit",
    "waste_by_block_size",
]
