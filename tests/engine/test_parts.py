"""An engine of somebody else's parts: good ones run a real model, broken ones are named and break nothing else."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from article_parts import MendedAllocator, MendedPrefixCache, MendedTable, SkeletonAllocator, SkeletonPrefixCache
from tiny_models import assert_all_back, own_tokens, random_prompt, tiny_model

from pagedkv_lab import sizing
from pagedkv_lab.blocks import BlockAllocator, BlockTable, PrefixCache, hash_block
from pagedkv_lab.engine import Engine, Parts, RequestOutput, SamplingParams
from pagedkv_lab.engine.scheduler import Schedule, Scheduled, Scheduler
from pagedkv_lab.errors import PartError

ARTICLE = {"BlockAllocator": MendedAllocator, "BlockTable": MendedTable, "PrefixCache": MendedPrefixCache}

#: A prompt that fills no block to its end, one that goes on from it, one of full blocks twice (a full hit), and one
#: that becomes several outputs.
REQUESTS = [
    (random_prompt(10), SamplingParams(max_tokens=6)),
    (random_prompt(14), SamplingParams(max_tokens=6)),
    (random_prompt(8), SamplingParams(max_tokens=5)),
    (random_prompt(8), SamplingParams(max_tokens=5)),
    (random_prompt(9, 1), SamplingParams(n=4, max_tokens=6)),
]


def make_engine(parts: dict[str, Any], **options: Any) -> Engine:
    options = {"block_size": 4, "num_gpu_blocks": 24, "max_model_len": 32, "max_num_batched_tokens": 16} | options
    return Engine(tiny_model("toy"), parts=Parts(**parts), **options)


def run_to_the_end(engine: Engine, done: dict[int, RequestOutput]) -> None:
    """Step until nothing is left, and put what comes out into `done` by request id."""
    while engine.has_unfinished_requests():
        done |= {output.request_id: output for output in engine.step().finished}


def assert_right_tokens(engine: Engine) -> None:
    prompts, params = zip(*REQUESTS, strict=True)
    outputs = engine.generate(list(prompts), list(params), use_tqdm=False)
    for (prompt, param), output in zip(REQUESTS, outputs, strict=True):
        expected = own_tokens(engine.model, prompt, param.max_tokens)
        assert [out.token_ids for out in output.outputs] == [expected] * param.n
    assert_all_back(engine)


# Good parts of somebody else's


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
@pytest.mark.parametrize("num_gpu_blocks", [24, 8])
def test_the_article_s_parts_once_mended_serve_the_model(enable_prefix_caching, num_gpu_blocks):
    engine = make_engine(ARTICLE, enable_prefix_caching=enable_prefix_caching, num_gpu_blocks=num_gpu_blocks)
    for _ in range(2):  # the second time, the prompts are in the cache
        assert_right_tokens(engine)
    assert (engine.stats().prefix_hit_rate > 0.3) == enable_prefix_caching
    assert (engine.stats().preemptions > 0) == (num_gpu_blocks == 8)
    if num_gpu_blocks == 24:
        assert engine.stats().copied_blocks >= 3, "four outputs share the prompt's last block until they write"


@pytest.mark.parametrize("name", ARTICLE)
def test_each_of_the_article_s_parts_works_among_the_package_s_own(name):
    engine = make_engine({name: ARTICLE[name]})
    assert engine.parts.names_of_others == [name]
    for _ in range(2):
        assert_right_tokens(engine)
    assert engine.stats().hit_tokens > 0


def test_the_article_s_parts_keep_salts_apart():
    engine = make_engine(ARTICLE)
    prompt = random_prompt(12)
    found = {}
    for salt in ("a", "a", "b", "b", None):
        [output] = engine.generate([prompt], SamplingParams(max_tokens=2), cache_salt=salt, use_tqdm=False)
        found.setdefault(salt, []).append(output.num_cached_tokens)
    assert found == {"a": [0, 11], "b": [0, 11], None: [0]}


def test_a_hash_function_alone_can_be_somebody_else_s():
    calls = []

    def own_hash(parent, token_ids):
        calls.append(token_ids)
        return hash((parent, *token_ids))

    engine = make_engine({"hash_block": own_hash})
    for _ in range(2):
        assert_right_tokens(engine)
    assert calls
    assert {len(token_ids) for token_ids in calls} == {4}, "only full blocks have a key"
    assert engine.stats().hit_tokens > 0


def plain_attention(query, key_pool, value_pool, block_tables, context_lens, query_lens, *, scale):
    """What a learner writes: token by token, one sequence after the other."""
    block_size, group = key_pool.shape[1], query.shape[1] // key_pool.shape[2]
    rows = []
    for s, (length, count) in enumerate(zip(context_lens, query_lens, strict=True)):
        slots = [(int(block_tables[s][p // block_size]), p % block_size) for p in range(length)]
        for position in range(length - count, length):
            seen = slots[: position + 1]
            keys = torch.stack([key_pool[block, offset] for block, offset in seen])  # (seen, Hkv, D)
            values = torch.stack([value_pool[block, offset] for block, offset in seen])
            heads = []
            for h, q in enumerate(query[len(rows)]):
                weights = torch.softmax(keys[:, h // group] @ q * scale, dim=0)
                heads.append(weights @ values[:, h // group])
            rows.append(torch.stack(heads))
    return torch.stack(rows)


def test_an_attention_written_plainly_serves_the_model_and_gets_no_more_than_it_asks_for():
    engine = make_engine({"paged_attention": plain_attention})  # would raise for `workspace`, or a window of None
    assert engine.attn_backend == "yours"
    assert_right_tokens(engine)


def test_an_attention_is_told_of_the_sliding_window_where_the_model_has_one():
    told = []

    def attention(*args, **options):
        from pagedkv_lab.attention.reference import paged_attention

        told.append(sorted(options))
        return paged_attention(*args, **options)

    engine = Engine(
        tiny_model("mistral"), parts=Parts(paged_attention=attention), num_gpu_blocks=16, max_model_len=32, block_size=4
    )
    prompt = random_prompt(20)
    [output] = engine.generate([prompt], SamplingParams(max_tokens=3), use_tqdm=False)
    assert output.token_ids == own_tokens(engine.model, prompt, 3)
    assert told == [["scale", "sliding_window"]] * 3 * 2


class ShortestFirst(Scheduler):
    """A policy of somebody's own, on what the package's scheduler does."""

    def add(self, seq):
        super().add(seq)
        self.waiting = type(self.waiting)(sorted(self.waiting, key=lambda seq: len(seq.token_ids)))


def test_a_scheduler_with_a_policy_of_its_own_decides_who_runs_first():
    engine = make_engine({"Scheduler": ShortestFirst}, max_num_seqs=1)
    ids = [engine.add_request(random_prompt(length, length), SamplingParams(max_tokens=2)) for length in (9, 3, 6)]
    done = []
    while engine.has_unfinished_requests():
        done += [output.request_id for output in engine.step().finished]
    assert done == [ids[1], ids[2], ids[0]]
    assert_right_tokens(make_engine({"Scheduler": ShortestFirst}))


def test_the_sizing_functions_plan_the_pool():
    def a_block_for_luck(memory_bytes, block_size, bytes_per_token):
        return sizing.num_blocks_that_fit(memory_bytes, block_size, bytes_per_token) - 1

    parts = {"num_blocks_that_fit": a_block_for_luck, "kv_bytes_per_token": lambda *shape: 2 * shape[0] * 16 * 2 * 4}
    engine = make_engine(parts, num_gpu_blocks=None, kv_cache_memory_bytes=10 * 4 * 512)
    assert engine.num_gpu_blocks == engine.stats().pool.total == 9
    assert_right_tokens(engine)


def test_a_number_of_bytes_a_token_that_is_wrong_stops_the_engine_before_it_starts():
    with pytest.raises(PartError, match=r"Your kv_bytes_per_token broke .* it says 256 bytes; .* weighs 512 bytes"):
        make_engine({"kv_bytes_per_token": lambda *shape: sizing.kv_bytes_per_token(*shape) // 2})


# Parts that break


class Mood:
    """Says whether a part misbehaves, so that the same part can be good afterwards."""

    bad = False


@dataclass(frozen=True)
class Broken:
    """A part that is good until the mood turns: then its method does this instead."""

    slot: str
    good: type
    method: str
    instead: Callable[..., Any]
    named: str = ""

    def parts(self, mood: Mood) -> dict[str, Any]:
        good, method, instead = self.good, self.method, self.instead

        def moody(part, *args):
            if mood.bad:
                return instead(part, *args)
            value = getattr(good, method)
            return value.fget(part) if isinstance(value, property) else value(part, *args)

        is_property = isinstance(getattr(good, method), property)
        part = type(f"Broken{self.slot}", (good,), {method: property(moody) if is_property else moody})
        # A scheduler runs over the package's own blocks, a part of the block layer among the article's.
        others = {} if self.slot == "Scheduler" else ARTICLE
        return others | {self.slot: part}


def raises(*args: Any, **options: Any) -> Any:
    raise IndexError("list index out of range")


def returns(value: Any) -> Callable[..., Any]:
    return lambda *args: value


class CountingAllocator(MendedAllocator):
    """With everything that the protocol allows a learner to write, and the article leaves out."""

    def __init__(self, num_blocks, block_size):
        super().__init__(num_blocks, block_size)
        self.counts, self.ref_count = self.ref_count, self.count_of

    def allocate(self):
        block = self.free_blocks.pop()
        self.counts[block] = 1
        return block

    def free(self, block_id):
        self.counts[block_id] -= 1
        if self.counts[block_id] == 0:
            self.free_blocks.append(block_id)

    def share(self, block_id):
        if self.counts[block_id] == 0:
            self.free_blocks.remove(block_id)
        self.counts[block_id] += 1

    def count_of(self, block_id):
        return self.counts[block_id]

    @property
    def num_free(self):
        return len(self.free_blocks)

    def mark_findable(self, block_id, findable=True):
        pass


class WholeTable(MendedTable):
    """With everything that the protocol allows a learner to write, and the article leaves out."""

    def append_shared(self, block_id):
        self.allocator.share(block_id)
        self.blocks.append(block_id)

    def fork(self):
        child = type(self)(self.allocator)
        for block_id in self.blocks:
            child.append_shared(block_id)
        return child

    def ensure_writable(self, i):
        source = self.blocks[i]
        if self.allocator.ref_count(source) == 1:
            return None
        self.blocks[i] = self.allocator.allocate()
        self.allocator.free(source)
        return source, self.blocks[i]

    def slot(self, position):
        return self.blocks[position // 4] * 4 + position % 4


def writes_in_place(table, i):
    return None


def keeps_the_blocks(table):
    table.blocks = []


def forgets_one(table):
    child = type(table)(table.allocator)
    for block_id in table.blocks[1:]:
        child.append_shared(block_id)
    return child


def two_at_once(table):
    table.blocks.append(table.allocator.allocate())
    table.blocks.append(table.allocator.allocate())
    return table.blocks[-1]


def hands_out_block_0_again(allocator):
    allocator.ref_count[0] = 1
    return 0


def same_work_twice(scheduler):
    schedule = Scheduler.schedule(scheduler)
    return Schedule(schedule.work * 2, schedule.preempted)


def one_token_too_many(scheduler):
    schedule = Scheduler.schedule(scheduler)
    return Schedule([Scheduled(item.seq, item.seq.num_uncomputed_tokens + 1, item.writes) for item in schedule.work])


def without_asking_for_blocks(scheduler):
    seq = scheduler.waiting[0]
    return Schedule([Scheduled(seq, len(seq.token_ids), range(len(seq.token_ids)))])


def writes_elsewhere(scheduler):
    schedule = Scheduler.schedule(scheduler)
    return Schedule([Scheduled(item.seq, item.num_tokens, range(0)) for item in schedule.work])


def work_in_tuples(scheduler):
    return Schedule([(item.seq, item.num_tokens) for item in Scheduler.schedule(scheduler).work])


BROKEN: dict[str, Broken] = {
    "allocate raises": Broken("BlockAllocator", MendedAllocator, "allocate", raises),
    "allocate returns None": Broken("BlockAllocator", MendedAllocator, "allocate", returns(None)),
    "allocate returns a block too high": Broken("BlockAllocator", MendedAllocator, "allocate", returns(24)),
    "allocate returns a negative block": Broken("BlockAllocator", MendedAllocator, "allocate", returns(-1)),
    "allocate repeats itself": Broken("BlockAllocator", MendedAllocator, "allocate", hands_out_block_0_again),
    "share raises": Broken("BlockAllocator", MendedAllocator, "share", raises),
    "share does nothing": Broken("BlockAllocator", MendedAllocator, "share", returns(None), named="ref_count"),
    "free raises": Broken("BlockAllocator", MendedAllocator, "free", raises),
    "free does nothing": Broken("BlockAllocator", MendedAllocator, "free", returns(None), named="ref_count"),
    "count_of raises": Broken("BlockAllocator", CountingAllocator, "count_of", raises, named="ref_count"),
    "count_of returns None": Broken("BlockAllocator", CountingAllocator, "count_of", returns(None), named="ref_count"),
    "num_free raises": Broken("BlockAllocator", CountingAllocator, "num_free", raises),
    "num_free returns None": Broken("BlockAllocator", CountingAllocator, "num_free", returns(None)),
    "num_free is negative": Broken("BlockAllocator", CountingAllocator, "num_free", returns(-1)),
    "mark_findable raises": Broken("BlockAllocator", CountingAllocator, "mark_findable", raises),
    "append_block raises": Broken("BlockTable", MendedTable, "append_block", raises),
    "append_block does nothing": Broken("BlockTable", MendedTable, "append_block", returns(0)),
    "append_block takes two": Broken("BlockTable", MendedTable, "append_block", two_at_once),
    "free_all raises": Broken("BlockTable", MendedTable, "free_all", raises),
    "free_all does nothing": Broken("BlockTable", MendedTable, "free_all", returns(None)),
    "free_all frees nothing": Broken("BlockTable", MendedTable, "free_all", keeps_the_blocks),
    "append_shared raises": Broken("BlockTable", WholeTable, "append_shared", raises),
    "fork raises": Broken("BlockTable", WholeTable, "fork", raises),
    "fork forgets a block": Broken("BlockTable", WholeTable, "fork", forgets_one),
    "ensure_writable raises": Broken("BlockTable", WholeTable, "ensure_writable", raises),
    "ensure_writable returns a number": Broken("BlockTable", WholeTable, "ensure_writable", returns(3)),
    "ensure_writable shares on": Broken("BlockTable", WholeTable, "ensure_writable", writes_in_place),
    "slot raises": Broken("BlockTable", WholeTable, "slot", raises),
    "lookup raises": Broken("PrefixCache", MendedPrefixCache, "lookup", raises),
    "lookup returns a string": Broken("PrefixCache", MendedPrefixCache, "lookup", returns("miss")),
    "lookup returns -1": Broken("PrefixCache", MendedPrefixCache, "lookup", returns(-1)),
    "lookup finds the wrong block": Broken("PrefixCache", MendedPrefixCache, "lookup", returns(0)),
    "insert raises": Broken("PrefixCache", MendedPrefixCache, "insert", raises),
    "forget raises": Broken("PrefixCache", MendedPrefixCache, "forget", raises),
    "compute_hash raises": Broken("PrefixCache", MendedPrefixCache, "compute_hash", raises),
    "compute_hash returns None": Broken("PrefixCache", MendedPrefixCache, "compute_hash", returns(None)),
    "compute_hash returns a list": Broken("PrefixCache", MendedPrefixCache, "compute_hash", returns([1, 2])),
    "add raises": Broken("Scheduler", Scheduler, "add", raises),
    "remove raises": Broken("Scheduler", Scheduler, "remove", raises),
    "add_fork raises": Broken("Scheduler", Scheduler, "add_fork", raises),
    "schedule raises": Broken("Scheduler", Scheduler, "schedule", raises),
    "schedule returns a list": Broken("Scheduler", Scheduler, "schedule", returns([])),
    "schedule lets nobody run": Broken("Scheduler", Scheduler, "schedule", returns(Schedule())),
    "schedule repeats a sequence": Broken("Scheduler", Scheduler, "schedule", same_work_twice),
    "schedule asks for too much": Broken("Scheduler", Scheduler, "schedule", one_token_too_many),
    "schedule forgets the blocks": Broken("Scheduler", Scheduler, "schedule", without_asking_for_blocks),
    "schedule forgets the writes": Broken("Scheduler", Scheduler, "schedule", writes_elsewhere),
    "schedule returns tuples": Broken("Scheduler", Scheduler, "schedule", work_in_tuples),
}


def assert_names(error: PartError, part: str, method: str) -> None:
    # The article computes keys in the prefix cache: that method is named by itself, as hash_block is.
    part = method if method == "compute_hash" else part
    assert error.part == part
    assert error.method.partition("(")[0] == method
    assert str(error).startswith(f"Your {part} broke in {method}")


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_part_is_named_with_its_method_and_the_engine_goes_on(name):
    broken, mood = BROKEN[name], Mood()
    engine = make_engine(broken.parts(mood))
    assert_right_tokens(engine)

    mood.bad = True
    prompts, params = zip(*REQUESTS, strict=True)
    with pytest.raises(PartError) as caught:
        engine.generate(list(prompts), list(params), use_tqdm=False)
    assert_names(caught.value, broken.slot, broken.named or broken.method)

    mood.bad = False
    assert_all_back(engine)
    for _ in range(2):
        assert_right_tokens(engine)


@pytest.mark.parametrize("name", [name for name in BROKEN if name != "add raises"])
def test_requests_that_met_a_broken_part_go_on_once_it_is_mended(name):
    broken, mood = BROKEN[name], Mood()
    engine = make_engine(broken.parts(mood))
    ids = [engine.add_request(*request) for request in REQUESTS]
    done = {}

    mood.bad = True
    with pytest.raises(PartError):
        run_to_the_end(engine, done)

    mood.bad = False
    run_to_the_end(engine, done)
    for request_id, (prompt, param) in zip(ids, REQUESTS, strict=True):
        expected = own_tokens(engine.model, prompt, param.max_tokens)
        assert [out.token_ids for out in done[request_id].outputs] == [expected] * param.n
    assert_all_back(engine)


@pytest.mark.parametrize("name", ["free raises", "free_all does nothing", "free_all raises", "remove raises"])
def test_a_request_can_be_aborted_though_the_part_gives_nothing_back(name):
    broken, mood = BROKEN[name], Mood()
    engine = make_engine(broken.parts(mood))
    mine, other = (engine.add_request(*request) for request in REQUESTS[:2])
    for _ in range(3):
        engine.step()
    mood.bad = True
    output = engine.abort(mine)
    assert output.finish_reason == "abort"
    assert list(engine.requests()) == [other]
    mood.bad = False
    done = {}
    run_to_the_end(engine, done)
    prompt, param = REQUESTS[1]
    assert {i: out.token_ids for i, out in done.items()} == {other: own_tokens(engine.model, prompt, param.max_tokens)}
    assert_all_back(engine)


class BreaksOnLongPrompts(Scheduler):
    """Only once it has taken them: the engine must not run them either."""

    def add(self, seq):
        super().add(seq)
        if len(seq.request.prompt_token_ids) > 12:
            raise IndexError("list index out of range")


def test_a_request_that_breaks_the_scheduler_takes_no_other_with_it():
    engine = make_engine({"Scheduler": BreaksOnLongPrompts})
    prompt, param = REQUESTS[0]
    mine = engine.add_request(prompt, param)
    engine.step()
    with pytest.raises(PartError, match=r"Your Scheduler broke in add\(<request 2>\): IndexError: list index"):
        engine.add_request(*REQUESTS[1])
    assert list(engine.requests()) == [mine]
    done = {}
    run_to_the_end(engine, done)
    assert {i: out.token_ids for i, out in done.items()} == {mine: own_tokens(engine.model, prompt, param.max_tokens)}
    assert_all_back(engine)


# Attention that breaks


def zeros(query, key_pool, value_pool, *args, **options):
    return torch.zeros(*query.shape[:2], value_pool.shape[3])


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (raises, "IndexError: list index out of range"),
        (lambda *args, **options: None, "it returned NoneType, not a tensor of (1, 4, 16)"),
        (lambda *args, **options: zeros(*args).tolist(), "it returned list, not a tensor of (1, 4, 16)"),
        (lambda *args, **options: zeros(*args)[None], "it returned (1, 1, 4, 16), not a tensor of (1, 4, 16)"),
        (lambda *args, **options: zeros(*args).flatten(1), "it returned (1, 64), not a tensor of (1, 4, 16)"),
        (lambda query, keys: query, "TypeError: "),
    ],
    ids=["raises", "None", "list", "one-dimension-more", "heads-joined", "takes-too-little"],
)
def test_a_broken_attention_is_named_and_the_engine_goes_on(wrong, what):
    mood = Mood()

    def attention(*args, **options):
        return wrong(*args, **options) if mood.bad else plain_attention(*args, **options)

    engine = make_engine({"paged_attention": attention})
    mood.bad = True
    with pytest.raises(PartError) as caught:
        engine.generate([[5]], use_tqdm=False)
    assert_names(caught.value, "paged_attention", "paged_attention")
    assert what in str(caught.value)
    assert_all_back(engine)
    mood.bad = False
    assert_right_tokens(engine)


def test_after_a_broken_attention_the_model_still_generates_by_itself():
    engine = make_engine({"paged_attention": raises})
    prompt = random_prompt(7, 77)
    with pytest.raises(PartError):
        engine.generate([prompt], use_tqdm=False)
    expected = own_tokens(engine.model, prompt, 5)  # its own generate, now
    [output] = make_engine({}).generate([prompt], SamplingParams(max_tokens=5), use_tqdm=False)
    assert output.token_ids == expected


# Parts that can't even be put in


class NoShare:
    def __init__(self, num_blocks, block_size):
        pass

    allocate = free = lambda self: None


class NoBlocks:
    def __init__(self, allocator):
        pass

    append_block = free_all = lambda self: 0


@pytest.mark.parametrize(
    ("parts", "part", "method"),
    [
        ({"BlockAllocator": NoShare}, "BlockAllocator", "share"),
        ({"BlockAllocator": lambda num_blocks: None}, "BlockAllocator", "__init__"),
        ({"PrefixCache": SkeletonPrefixCache}, "PrefixCache", "forget"),
        ({"Scheduler": lambda config, manager: object()}, "Scheduler", "add"),
        ({"Scheduler": raises}, "Scheduler", "__init__"),
        ({"kv_bytes_per_token": raises}, "kv_bytes_per_token", "kv_bytes_per_token"),
    ],
)
def test_a_part_that_lacks_what_its_protocol_asks_for_is_named_when_the_engine_is_made(parts, part, method):
    with pytest.raises(PartError) as caught:
        make_engine(parts)
    assert_names(caught.value, part, method)


def test_a_table_without_a_list_of_blocks_is_named_at_the_first_request():
    engine = make_engine({"BlockTable": NoBlocks})
    with pytest.raises(PartError, match="Your BlockTable broke in __init__: it keeps no list called blocks"):
        engine.generate([[5]], use_tqdm=False)
    assert_all_back(engine)


def test_the_article_s_allocator_as_published_is_caught_when_it_hands_out_a_block_twice():
    """Its share leaves a revived block in the free list."""
    engine = make_engine(ARTICLE | {"BlockAllocator": SkeletonAllocator})
    prompt = random_prompt(12)
    engine.generate([prompt], SamplingParams(max_tokens=2), use_tqdm=False)
    with pytest.raises(PartError, match=r"broke in allocate\(\).*look at free .* and at share"):
        engine.generate([prompt], SamplingParams(max_tokens=18), use_tqdm=False)


# Parts by name


def test_the_package_s_own_parts_are_no_others():
    assert Parts().names_of_others == []
    own = Parts(BlockAllocator=BlockAllocator, BlockTable=BlockTable, PrefixCache=PrefixCache, Scheduler=Scheduler)
    assert own.names_of_others == []
    assert Parts(hash_block=hash_block, paged_attention=plain_attention).names_of_others[-1] == "paged_attention"


def test_a_slot_that_does_not_exist_is_named():
    with pytest.raises(TypeError, match="BlockAlocator"):
        Parts(BlockAlocator=MendedAllocator)


# Parts that nobody watches, to see what a mistake does


def test_unwatched_a_cache_that_never_forgets_gives_one_user_the_other_s_text():
    """Watched, it can't even be put in; unwatched it answers the first prompt with what stands in its blocks now."""
    mine, yours = random_prompt(12, 3), random_prompt(12, 4)
    parts = ARTICLE | {"PrefixCache": SkeletonPrefixCache, "watch": False}
    engine = make_engine(parts, num_gpu_blocks=4, max_model_len=16)
    greedy = SamplingParams(max_tokens=3)
    answers = [engine.generate([prompt], greedy, use_tqdm=False)[0].token_ids for prompt in (mine, yours, mine)]
    assert answers[0] == own_tokens(engine.model, mine, 3)
    assert answers[1] == own_tokens(engine.model, yours, 3)
    assert answers[2] != answers[0]


def test_unwatched_an_allocator_may_hand_out_a_block_twice():
    engine = make_engine(ARTICLE | {"BlockAllocator": SkeletonAllocator, "watch": False})
    prompt, expected = random_prompt(12), own_tokens(tiny_model("toy"), random_prompt(12), 18)
    engine.generate([prompt], SamplingParams(max_tokens=2), use_tqdm=False)
    [output] = engine.generate([prompt], SamplingParams(max_tokens=18), use_tqdm=False)
    assert output.token_ids != expected


def test_unwatched_right_parts_are_right_and_a_part_that_raises_is_still_named():
    assert_right_tokens(make_engine(ARTICLE | {"watch": False}))

    class Raises(MendedAllocator):
        def allocate(self):
            raise ValueError("no")

    with pytest.raises(PartError, match=r"Your BlockAllocator broke in allocate\(\): ValueError: no"):
        make_engine({"BlockAllocator": Raises, "watch": False}).generate([[5]], use_tqdm=False)


def test_to_be_watched_or_not_is_no_part():
    assert Parts(watch=False).names_of_others == []
    assert [Parts().watch, Parts(watch=False).watch] == [True, False]
