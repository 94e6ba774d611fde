"""The course's chapters in order: what each asks, which parts of the engine come out of it, and what it builds on.

Knows names, questions and dependencies. Does not know what is in a chapter: minutes and difficulty stand in the
lessons' headers, exercises in `checks`.
"""

from dataclasses import dataclass

NUM_WRITTEN = 10  # chapters are written in order: these are there to be opened, the others still to come
FOUNDATIONS = tuple(range(1, 9))  # the chapters that together build a whole engine


@dataclass(frozen=True)
class Chapter:
    """One chapter. `folder` is its name in course/, `builds` the slots of `Parts` that its exercises fill.

    `needs`: numbers of the chapters that come first; what those need is not repeated.
    """

    number: int
    folder: str
    title: str
    question: str
    builds: tuple[str, ...] = ()
    needs: tuple[int, ...] = ()

    @property
    def is_written(self) -> bool:
        """Whether the chapter is there to be opened, or still to come."""
        return self.number < NUM_WRITTEN


COURSE = (
    Chapter(0, "00_start_here", "Start here", "Where did the other 96 tokens go?"),
    Chapter(
        1, "01_kv_sizing", "KV sizing", "What does one token weigh, and how many users fit?",
        builds=("kv_bytes_per_token", "num_blocks_that_fit"), needs=(0,),
    ),
    Chapter(
        2, "02_block_allocator", "Block allocator", "Who owns which block, and what is a leak?",
        builds=("BlockAllocator",), needs=(1,),
    ),
    Chapter(
        3, "03_block_table", "Block table", "Where in the pool is position 37?",
        builds=("BlockTable",), needs=(2,),
    ),
    Chapter(
        4, "04_prefix_hashing", "Prefix hashing", "When are two blocks the same?",
        builds=("hash_block",), needs=(1,),
    ),
    Chapter(
        5, "05_prefix_cache", "Prefix cache", "What stays, and what goes first?",
        builds=("PrefixCache", "BlockAllocator"), needs=(2, 4),
    ),
    Chapter(
        6, "06_copy_on_write", "Copy-on-write", "What if a shared block is written?",
        builds=("BlockTable",), needs=(3,),
    ),
    Chapter(
        7, "07_paged_attention", "Paged attention", "How does a model read scattered blocks?",
        builds=("paged_attention",), needs=(3,),
    ),
    Chapter(
        8, "08_scheduler", "Scheduler", "Who runs in this step?",
        builds=("Scheduler",), needs=(3, 5),
    ),
    Chapter(9, "09_measure", "Measure", "Is it true that this doubles the throughput?", needs=FOUNDATIONS),
    Chapter(10, "10_debugging", "Debugging", "Which part of this engine is broken?", needs=FOUNDATIONS),
    Chapter(11, "11_nano_vllm_to_vllm", "nano-vllm to vLLM", "How do the real ones do it?", needs=FOUNDATIONS),
    Chapter(12, "12_quantized_kv", "Quantized cache", "How few bits will do?", needs=(7,)),
    Chapter(13, "13_eviction", "Eviction", "Which tokens can be forgotten?", needs=(7,)),
    Chapter(14, "14_many_gpus", "Many GPUs", "How is one pool spread over four cards?", needs=(7,)),
    Chapter(15, "15_capstone", "Capstone", "Does an engine of your own parts keep up?", needs=FOUNDATIONS),
)  # fmt: skip


@dataclass(frozen=True)
class ChapterList:
    """All chapters with their questions and parts: a table in a notebook, with links to the lessons beside it."""

    def __repr__(self) -> str:
        width = max(len(chapter.title) for chapter in COURSE)
        return "\n".join(
            f"{chapter.number:02}  {chapter.title:<{width}}  {chapter.question}"
            + ("" if chapter.is_written else "  (to come)")
            for chapter in COURSE
        )

    def _repr_markdown_(self) -> str:
        rows = [
            f"| {chapter.number:02} | {_link(chapter)} | {chapter.question} | {_code(chapter.builds)} |"
            for chapter in COURSE
        ]
        head = ["| | chapter | the question | parts of the engine that you write |", "|:---|:---|:---|:---|"]
        return "\n".join([*head, *rows])


def _link(chapter: Chapter) -> str:
    return f"[{chapter.title}]({chapter.folder}.ipynb)" if chapter.is_written else f"{chapter.title} (to come)"


def _code(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)
