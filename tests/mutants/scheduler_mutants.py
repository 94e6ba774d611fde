"""Wrong and right implementations of the exercises of chapter 08, with the diagnosis each wrong one must get.

Each is written as a learner would write it, without a look at the check.
"""

from collections import deque
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from statistics import mean

import numpy as np
from mutant_list import right, wrong

from pagedkv_lab.engine.scheduler import Schedule, Scheduled
from pagedkv_lab.engine.scheduler import Scheduler as PackageScheduler

# 8.1 split_budget


@right("split_budget")
def one_loop(left, budget, chunked):
    """a loop with a break"""
    tokens = [0] * len(left)
    for i, wanted in enumerate(left):
        if budget == 0 or (wanted > budget and not chunked):
            break
        tokens[i] = min(wanted, budget)
        budget -= tokens[i]
    return tokens


@right("split_budget")
def by_running_sums(left, budget, chunked):
    """running sums"""
    ends = list(accumulate(left, initial=0))
    if not chunked:
        budget = max(end for end in ends if end <= budget)
    return [min(end, budget) - min(start, budget) for start, end in pairwise(ends)]


@right("split_budget")
def with_numpy(left, budget, chunked):
    """numpy ints in an array"""
    ends = np.cumsum(np.array([0, *left]))
    cut = budget if chunked else ends[ends <= budget].max()
    return np.diff(np.minimum(ends, cut))


@right("split_budget")
def recursive(left, budget, chunked):
    """recursion, with a tuple"""
    if not left:
        return ()
    if left[0] > budget and not chunked:
        return (0,) * len(left)
    tokens = min(left[0], budget)
    return (tokens, *recursive(left[1:], budget - tokens, chunked))


wrong("split_budget", "not_a_function", "a number in the place of a function", general=True)(8)


@wrong("split_budget", "unwritten", general=True)
def stub_of_the_split(left, budget, chunked):
    """the stub"""


@wrong("split_budget", "prints", general=True)
def prints_the_split(left, budget, chunked):
    """prints in the place of return"""
    print(one_loop(left, budget, chunked))


@wrong("split_budget", "endless", general=True)
def never_spent(left, budget, chunked):
    """a loop that waits until the budget is spent"""
    tokens = [0] * len(left)
    while budget > 0:
        for i, wanted in enumerate(left):
            take = min(wanted - tokens[i], budget)
            tokens[i] += take
            budget -= take
    return tokens


@wrong("split_budget", "gives_all")
def everybody_gets_all(left, budget, chunked):
    """no budget at all"""
    return list(left)


@wrong("split_budget", "budget_not_reduced")
def each_for_itself(left, budget, chunked):
    """min with the whole budget for each"""
    return [min(wanted, budget) for wanted in left]


@wrong("split_budget", "equal_parts")
def equally(left, budget, chunked):
    """equal parts"""
    share = budget // max(1, len(left))
    return [min(wanted, share) for wanted in left]


@wrong("split_budget", "always_in_pieces")
def ignores_chunked(left, budget, chunked):
    """chunks, asked or not"""
    tokens = []
    for wanted in left:
        tokens.append(min(wanted, budget))
        budget -= tokens[-1]
    return tokens


@wrong("split_budget", "never_in_pieces")
def never_cuts(left, budget, chunked):
    """no chunks, asked or not"""
    return one_loop(left, budget, False)


@wrong("split_budget", "overtakes")
def goes_on_behind(left, budget, chunked):
    """continue in the place of break"""
    tokens = []
    for wanted in left:
        if wanted > budget and not chunked:
            tokens.append(0)
            continue
        tokens.append(min(wanted, budget))
        budget -= tokens[-1]
    return tokens


@wrong("split_budget", "last_first")
def from_the_end(left, budget, chunked):
    """from the end of the list"""
    return one_loop(left[::-1], budget, chunked)[::-1]


@wrong("split_budget", "shortest_first")
def short_ones_first(left, budget, chunked):
    """sorted first"""
    order = sorted(range(len(left)), key=lambda i: left[i])
    shared = dict(zip(order, one_loop([left[i] for i in order], budget, chunked), strict=True))
    return [shared[i] for i in range(len(left))]


@wrong("split_budget", "leaves_out")
def only_those_that_run(left, budget, chunked):
    """no entry for those that get nothing"""
    return [tokens for tokens in one_loop(left, budget, chunked) if tokens]


@wrong("split_budget", "exceeds")
def one_too_many(left, budget, chunked):
    """>= 0 in the place of > 0, with a token for everybody"""
    tokens = []
    for wanted in left:
        tokens.append(max(1, min(wanted, budget)))
        budget -= tokens[-1]
    return tokens


@wrong("split_budget", "wrong_shares")
def off_by_one(left, budget, chunked):
    """keeps one token of the budget back"""
    return one_loop(left, budget - 1, chunked)


@wrong("split_budget", "mutates")
def pops_from_left(left, budget, chunked):
    """empties the caller's list"""
    tokens = []
    while left:
        wanted = left.pop(0)
        tokens.append(min(wanted, budget))
        budget -= tokens[-1]
    return tokens


@wrong("split_budget", "no_list")
def sum_of_the_shares(left, budget, chunked):
    """a sum in the place of a list"""
    return sum(one_loop(left, budget, chunked))


# 8.2 make_room


def _give_way(scheduler, step, victim):
    scheduler.manager.free(victim)
    scheduler.running.remove(victim)
    victim.num_computed_tokens = 0
    victim.num_preemptions += 1
    scheduler.waiting.appendleft(victim)
    step.preempted.append(victim)


@right("make_room")
def while_none(scheduler, step, seq, num_tokens):
    """while append says None"""
    while (writes := scheduler.manager.append(seq, num_tokens)) is None:
        victim = scheduler.running[-1]
        _give_way(scheduler, step, victim)
        if victim is seq:
            return None
    return writes


@right("make_room")
def over_the_reversed_list(scheduler, step, seq, num_tokens):
    """a loop over the running ones from the end"""
    for victim in [None, *reversed(scheduler.running)]:
        if victim is not None:
            scheduler.manager.free(victim)
            del scheduler.running[-1]
            victim.num_computed_tokens = 0
            victim.num_preemptions = victim.num_preemptions + 1
            scheduler.waiting.insert(0, victim)
            step.preempted = [*step.preempted, victim]
            if victim is seq:
                return None
        writes = scheduler.manager.append(seq, num_tokens)
        if writes is not None:
            return writes
    return None


@right("make_room")
def calls_itself(scheduler, step, seq, num_tokens):
    """recursion"""
    writes = scheduler.manager.append(seq, num_tokens)
    if writes is not None:
        return writes
    victim = scheduler.running[-1]
    _give_way(scheduler, step, victim)
    return None if victim is seq else calls_itself(scheduler, step, seq, num_tokens)


wrong("make_room", "not_a_function", "None in the place of a function", general=True)(None)


@wrong("make_room", "unwritten", general=True)
def stub_of_room(scheduler, step, seq, num_tokens):
    """the stub"""


@wrong("make_room", "endless", general=True)
def waits_for_room(scheduler, step, seq, num_tokens):
    """waits until there is room"""
    while (writes := scheduler.manager.append(seq, num_tokens)) is None:
        pass
    return writes


@wrong("make_room", "raises", general=True)
def asks_for_itself_again(scheduler, step, seq, num_tokens):
    """asks for room again after it gave way itself"""
    while (writes := scheduler.manager.append(seq, num_tokens)) is None:
        _give_way(scheduler, step, scheduler.running[-1])
    return writes


@wrong("make_room", "never_preempts")
def only_asks(scheduler, step, seq, num_tokens):
    """asks once, and that is all"""
    return scheduler.manager.append(seq, num_tokens)


@wrong("make_room", "preempts_the_oldest")
def oldest_first(scheduler, step, seq, num_tokens):
    """from the front of the list"""
    while (writes := scheduler.manager.append(seq, num_tokens)) is None:
        victim = scheduler.running[0]
        _give_way(scheduler, step, victim)
        if victim is seq:
            return None
    return writes


@wrong("make_room", "gives_up_too_early")
def one_is_enough(scheduler, step, seq, num_tokens):
    """if in the place of while"""
    writes = scheduler.manager.append(seq, num_tokens)
    if writes is None:
        victim = scheduler.running[-1]
        _give_way(scheduler, step, victim)
        if victim is not seq:
            writes = scheduler.manager.append(seq, num_tokens)
    return writes


@wrong("make_room", "preempts_too_many")
def clears_all(scheduler, step, seq, num_tokens):
    """all behind it give way at once"""
    writes = scheduler.manager.append(seq, num_tokens)
    if writes is None:
        for victim in reversed(list(scheduler.running)):
            _give_way(scheduler, step, victim)
            if victim is seq:
                return None
            if scheduler.running[-1] is seq:
                return scheduler.manager.append(seq, num_tokens) or clears_all(scheduler, step, seq, num_tokens)
    return writes


@wrong("make_room", "preempts_needlessly")
def preempts_first(scheduler, step, seq, num_tokens):
    """preempts before it asks"""
    victim = scheduler.running[-1]
    if victim is not seq:
        _give_way(scheduler, step, victim)
    return while_none(scheduler, step, seq, num_tokens)


@wrong("make_room", "preempts_another")
def the_one_behind(scheduler, step, seq, num_tokens):
    """the next one in the list, not the last"""
    while (writes := scheduler.manager.append(seq, num_tokens)) is None:
        i = scheduler.running.index(seq)
        victim = scheduler.running[min(i + 1, len(scheduler.running) - 1)]
        _give_way(scheduler, step, victim)
        if victim is seq:
            return None
    return writes


@wrong("make_room", "spares_itself")
def never_itself(scheduler, step, seq, num_tokens):
    """the last of the others"""
    while (writes := scheduler.manager.append(seq, num_tokens)) is None:
        others = [one for one in scheduler.running if one is not seq]
        if not others:
            _give_way(scheduler, step, seq)
            return None
        _give_way(scheduler, step, others[-1])
    return writes


def _careless(leave_out):
    """make_room in which one line is missing."""

    def function(scheduler, step, seq, num_tokens):
        while (writes := scheduler.manager.append(seq, num_tokens)) is None:
            victim = scheduler.running[-1]
            if leave_out != "free":
                scheduler.manager.free(victim)
            if leave_out != "running":
                scheduler.running.remove(victim)
            elif victim.num_preemptions:
                return None
            if leave_out != "computed":
                victim.num_computed_tokens = 0
            if leave_out != "count":
                victim.num_preemptions += 1
            if leave_out == "tail":
                scheduler.waiting.append(victim)
            elif leave_out != "waiting":
                scheduler.waiting.appendleft(victim)
            if leave_out != "told":
                step.preempted.append(victim)
            if leave_out == "tokens":
                victim.token_ids = victim.token_ids[: victim.prompt_len]
            if victim is seq:
                return seq if leave_out == "none" else None
        return True if leave_out == "writes" else None if leave_out == "return" else writes

    return function


wrong("make_room", "victim_keeps_its_blocks", "no manager.free")(_careless("free"))
wrong("make_room", "victim_still_runs", "not out of running")(_careless("running"))
wrong("make_room", "victim_keeps_its_count", "computed tokens not reset")(_careless("computed"))
wrong("make_room", "not_counted", "preemptions not counted")(_careless("count"))
wrong("make_room", "victim_is_lost", "not into waiting")(_careless("waiting"))
wrong("make_room", "wrong_place_in_the_queue", "to the tail of the queue")(_careless("tail"))
wrong("make_room", "preempted_not_told", "not into step.preempted")(_careless("told"))
wrong("make_room", "loses_tokens", "the output is thrown away")(_careless("tokens"))
wrong("make_room", "no_none", "returns the sequence when it gave way itself")(_careless("none"))
wrong("make_room", "wrong_writes", "returns True")(_careless("writes"))
wrong("make_room", "returns_none", "no return at the end")(_careless("return"))


# 8.3 Scheduler


class Plain:
    """Two queues and the policy, in pieces that the wrong ones below replace one of."""

    def __init__(self, config, manager):
        self.config, self.manager = config, manager
        self.waiting, self.running = deque(), []

    def add(self, seq):
        self.waiting.append(seq)

    def add_fork(self, parent, child):
        self.running.insert(self.running.index(parent) + 1, child)

    def remove(self, seq):
        for queue in (self.running, self.waiting):
            if seq in queue:
                queue.remove(seq)

    def preempt(self, step, victim):
        self.manager.free(victim)
        self.running.remove(victim)
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        self.waiting.appendleft(victim)
        step.preempted.append(victim)

    def victim(self, seq):
        return self.running[-1]

    def room(self, step, seq, num_tokens):
        while (writes := self.manager.append(seq, num_tokens)) is None:
            victim = self.victim(seq)
            self.preempt(step, victim)
            if victim is seq:
                return None
        return writes

    def schedule(self):
        step = Schedule()
        budget = self.run(step, self.config.max_num_batched_tokens)
        if not step.preempted:
            self.let_in(step, budget)
        return step

    def tokens(self, seq, budget):
        return min(seq.num_uncomputed_tokens, budget)

    def run(self, step, budget):
        for seq in list(self.running):
            if seq not in self.running or budget == 0:
                break
            num_tokens = self.tokens(seq, budget)
            writes = self.room(step, seq, num_tokens)
            if writes is None:
                break
            step.work.append(Scheduled(seq, num_tokens, writes))
            budget -= num_tokens
        return budget

    def has_place(self, seq):
        return sum(1 + one.forks_to_come for one in [*self.running, seq]) <= self.config.max_num_seqs

    def watermark(self):
        return int(self.config.watermark * self.manager.num_blocks) if self.running else 0

    def has_blocks(self, seq, hits, budget):
        return self.manager.can_admit(seq, hits, self.watermark())

    def fits_into_the_step(self, seq, hits, budget):
        left = len(seq.token_ids) - min(len(hits) * self.manager.block_size, len(seq.token_ids) - 1)
        return left <= budget or self.config.enable_chunked_prefill

    def start(self, seq, hits):
        self.waiting.remove(seq)
        self.running.append(seq)
        seq.num_computed_tokens = self.manager.admit(seq, hits)

    def let_in(self, step, budget):
        while self.waiting and budget > 0:
            seq = self.waiting[0]
            hits = self.manager.lookup(seq)
            if not self.has_place(seq) or not self.fits_into_the_step(seq, hits, budget):
                break
            if not self.has_blocks(seq, hits, budget):
                break
            self.start(seq, hits)
            num_tokens = self.tokens(seq, budget)
            step.work.append(Scheduled(seq, num_tokens, self.manager.append(seq, num_tokens)))
            budget -= num_tokens


right("Scheduler", "the package's own")(PackageScheduler)
right("Scheduler", "two queues, in pieces")(Plain)


@right("Scheduler")
@dataclass
class Dataclass:
    """a dataclass with lists only"""

    config: object
    manager: object
    waiting: list = field(default_factory=list)
    running: list = field(default_factory=list)

    def add(self, seq):
        self.waiting = [*self.waiting, seq]

    def remove(self, seq):
        self.waiting = [one for one in self.waiting if one is not seq]
        self.running = [one for one in self.running if one is not seq]

    def schedule(self):
        step, left = Schedule(), self.config.max_num_batched_tokens
        i = 0
        while i < len(self.running) and left:
            seq = self.running[i]
            wanted = min(left, len(seq.token_ids) - seq.num_computed_tokens)
            writes = self.manager.append(seq, wanted)
            if writes is None:
                victim = self.running.pop()
                self.manager.free(victim)
                victim.num_computed_tokens, victim.num_preemptions = 0, victim.num_preemptions + 1
                self.waiting.insert(0, victim)
                step.preempted.append(victim)
                continue  # the same one again, if it is still there
            step.work.append(Scheduled(seq, wanted, writes))
            left -= wanted
            i += 1
        while self.waiting and left and not step.preempted:
            seq, places = self.waiting[0], sum(1 + one.forks_to_come for one in self.running)
            hits = self.manager.lookup(seq)
            found = min(len(hits) * self.config.block_size, len(seq.token_ids) - 1)
            spare = int(self.config.watermark * self.manager.num_blocks) if self.running else 0
            whole = self.config.enable_chunked_prefill or len(seq.token_ids) - found <= left
            if places + 1 + seq.forks_to_come > self.config.max_num_seqs or not whole:
                return step
            if not self.manager.can_admit(seq, hits, spare):
                return step
            del self.waiting[0]
            self.running.append(seq)
            seq.num_computed_tokens = self.manager.admit(seq, hits)
            wanted = min(left, seq.num_uncomputed_tokens)
            step.work.append(Scheduled(seq, wanted, self.manager.append(seq, wanted)))
            left -= wanted
        return step


@right("Scheduler")
class InReverse(Plain):
    """the work is listed in another order, with numpy ints"""

    def schedule(self):
        step = super().schedule()
        work = [Scheduled(seq, np.int64(num_tokens), writes) for seq, num_tokens, writes in reversed(step.work)]
        return Schedule(work, step.preempted)


@right("Scheduler", "closures in a namespace")
def closures(config, manager):
    inner = Plain(config, manager)

    class Namespace:
        waiting, running = inner.waiting, inner.running

    made = Namespace()
    made.add, made.schedule, made.remove = inner.add, inner.schedule, inner.remove
    return made


wrong("Scheduler", "not_a_class", "a list in the place of a class", general=True)([])


@wrong("Scheduler", "unwritten", general=True)
class StubOfTheScheduler(Plain):
    """the stub"""

    def schedule(self):
        """Nothing."""


@wrong("Scheduler", "no_method", general=True)
class NoSchedule:
    """no method schedule"""

    def __init__(self, config, manager):
        self.waiting, self.running = [], []

    def add(self, seq):
        self.waiting.append(seq)


@wrong("Scheduler", "endless", general=True)
class LoopsOverWaiting(Plain):
    """a loop that never takes anybody out of the queue"""

    def let_in(self, step, budget):
        while self.waiting:
            if not self.has_place(self.waiting[0]):
                break


@wrong("Scheduler", "raises", general=True)
class AdmitsTwice(Plain):
    """never out of the waiting queue"""

    def start(self, seq, hits):
        self.running.append(seq)
        seq.num_computed_tokens = self.manager.admit(seq, hits)


@wrong("Scheduler", "returns_none")
class NothingToDo(Plain):
    """None where nobody runs"""

    def schedule(self):
        step = super().schedule()
        if step.work:
            return step
        return None


@wrong("Scheduler", "not_a_schedule")
class ReturnsTheWork(Plain):
    """the list of work in the place of the Schedule"""

    def schedule(self):
        return super().schedule().work


@wrong("Scheduler", "not_scheduled")
class Pairs(Plain):
    """pairs in the place of Scheduled"""

    def schedule(self):
        step = super().schedule()
        step.work = [(seq, num_tokens) for seq, num_tokens, _ in step.work]
        return step


@wrong("Scheduler", "not_scheduled", "names in the place of sequences")
class Names(Plain):
    def schedule(self):
        step = super().schedule()
        step.work = [Scheduled(seq.name, num_tokens, writes) for seq, num_tokens, writes in step.work]
        return step


@wrong("Scheduler", "wrong_type")
class FloatTokens(Plain):
    """tokens as floats"""

    def schedule(self):
        step = super().schedule()
        step.work = [Scheduled(seq, num_tokens / 1, writes) for seq, num_tokens, writes in step.work]
        return step


@wrong("Scheduler", "starves_decodes")
class PrefillFirst(Plain):
    """the waiting ones first, with the whole budget"""

    def schedule(self):
        step = Schedule()
        self.let_in(step, self.config.max_num_batched_tokens)
        if not step.work:
            self.run(step, self.config.max_num_batched_tokens)
        return step


@wrong("Scheduler", "starves_decodes", "the one that runs longest prompt first")
class LongestFirst(Plain):
    def run(self, step, budget):
        self.running.sort(key=lambda seq: -seq.num_uncomputed_tokens)
        return super().run(step, budget)


@wrong("Scheduler", "admits_what_cant_fit")
class FirstChunkFits(Plain):
    """asks only whether the first chunk fits"""

    def has_blocks(self, seq, hits, budget):
        first = min(len(seq.token_ids), budget)
        return -(-first // self.manager.block_size) <= self.manager.allocator.num_free


@wrong("Scheduler", "never_preempts")
class LeavesItOut(Plain):
    """who finds no room is left out of the step"""

    def room(self, step, seq, num_tokens):
        return self.manager.append(seq, num_tokens)


@wrong("Scheduler", "preempts_the_oldest")
class OldestGivesWay(Plain):
    """the first of the list gives way"""

    def victim(self, seq):
        return self.running[0]


@wrong("Scheduler", "preempts_another")
class NextGivesWay(Plain):
    """the one behind it gives way, not the last"""

    def victim(self, seq):
        at = self.running.index(seq)
        return self.running[min(at + 1, len(self.running) - 1)]


@wrong("Scheduler", "preempts_too_many")
class AllGiveWay(Plain):
    """all behind it give way"""

    def room(self, step, seq, num_tokens):
        writes = self.manager.append(seq, num_tokens)
        while writes is None or (step.preempted and self.running[-1] is not seq):
            victim = self.running[-1]
            self.preempt(step, victim)
            if victim is seq:
                return None
            if writes is None:
                writes = self.manager.append(seq, num_tokens)
        return writes


@wrong("Scheduler", "preempts_needlessly")
class KeepsTheWatermark(Plain):
    """keeps blocks free for those that run, too"""

    def run(self, step, budget):
        while len(self.running) > 1 and self.manager.allocator.num_free < 2:
            self.preempt(step, self.running[-1])
        return super().run(step, budget)


@wrong("Scheduler", "another_order")
class VictimsSorted(Plain):
    """tells its victims in the order of arrival"""

    def schedule(self):
        step = super().schedule()
        step.preempted.sort(key=lambda seq: seq.seq_id)
        return step


@wrong("Scheduler", "loses_a_chunk")
class BeginsAgain(Plain):
    """begins a prompt again with each chunk"""

    def run(self, step, budget):
        for seq in self.running:
            if not seq.is_decoding:
                seq.num_computed_tokens = 0
        return super().run(step, budget)


@wrong("Scheduler", "counts_too_early")
class CountsItself(Plain):
    """counts the tokens as computed itself"""

    def run(self, step, budget):
        budget = super().run(step, budget)
        for seq, num_tokens, _ in step.work:
            seq.num_computed_tokens += num_tokens
        return budget


@wrong("Scheduler", "exceeds_the_budget")
class NoBudget(Plain):
    """every prompt whole"""

    def tokens(self, seq, budget):
        return seq.num_uncomputed_tokens


@wrong("Scheduler", "exceeds_the_budget", "the budget is not reduced for those who come in")
class FreshBudget(Plain):
    def let_in(self, step, budget):
        super().let_in(step, self.config.max_num_batched_tokens)


@wrong("Scheduler", "exceeds_max_num_seqs")
class NoPlaces(Plain):
    """max_num_seqs forgotten"""

    def has_place(self, seq):
        return True


@wrong("Scheduler", "exceeds_max_num_seqs", "no places for the forks to come")
class NoForks(Plain):
    def has_place(self, seq):
        return len(self.running) < self.config.max_num_seqs


@wrong("Scheduler", "twice")
class RunsTheNewOnesToo(Plain):
    """the waiting ones first, and then all that run"""

    def schedule(self):
        step = Schedule()
        self.let_in(step, self.config.max_num_batched_tokens)
        self.run(step, self.config.max_num_batched_tokens)
        return step


@wrong("Scheduler", "runs_a_victim")
class PlansFirst(Plain):
    """a victim stays in the work"""

    def schedule(self):
        before = [(seq, self.manager.room(seq)) for seq in self.running]
        step = super().schedule()
        for seq, _ in before:
            if seq in step.preempted:
                step.work.append(Scheduled(seq, 1, range(1)))
        return step


@wrong("Scheduler", "runs_the_removed")
class RemovesNobody(Plain):
    """remove does nothing"""

    def remove(self, seq):
        pass

    def room(self, step, seq, num_tokens):
        if not self.manager.room(seq):
            return range(num_tokens)
        return super().room(step, seq, num_tokens)


@wrong("Scheduler", "no_such_tokens")
class WholePromptEachTime(Plain):
    """the length of the prompt, computed or not"""

    def tokens(self, seq, budget):
        return min(len(seq.token_ids), budget)


@wrong("Scheduler", "no_room")
class NeverAsks(Plain):
    """makes up the range itself"""

    def room(self, step, seq, num_tokens):
        return range(seq.num_computed_tokens, seq.num_computed_tokens + num_tokens)


@wrong("Scheduler", "wrong_writes")
class WritesFromZero(Plain):
    """the number of writes in the place of their range"""

    def room(self, step, seq, num_tokens):
        writes = super().room(step, seq, num_tokens)
        return writes if writes is None else range(len(writes))


@wrong("Scheduler", "preempted_not_told")
class SaysNothing(Plain):
    """step.preempted stays empty"""

    def preempt(self, step, victim):
        super().preempt(step, victim)
        self.gone = True
        step.preempted.clear()

    def schedule(self):
        self.gone = False
        return super().schedule()

    def let_in(self, step, budget):
        if not self.gone:
            super().let_in(step, budget)


@wrong("Scheduler", "preempted_not_sequences")
class TellsNames(Plain):
    """names of victims in the place of the sequences"""

    def schedule(self):
        step = super().schedule()
        return Schedule(step.work, [victim.name for victim in step.preempted])


@wrong("Scheduler", "forgets_the_rest")
class DecodesOnly(Plain):
    """of those that run, only the ones that decode"""

    def run(self, step, budget):
        everybody = self.running
        self.running = [seq for seq in everybody if seq.is_decoding]
        budget = super().run(step, budget)
        self.running = everybody
        return budget


@wrong("Scheduler", "overtakes")
class TakesWhoFits(Plain):
    """goes on behind one that doesn't fit"""

    def let_in(self, step, budget):
        for seq in list(self.waiting):
            hits = self.manager.lookup(seq)
            fits = self.has_place(seq) and self.fits_into_the_step(seq, hits, budget)
            if budget and fits and self.has_blocks(seq, hits, budget):
                self.start(seq, hits)
                num_tokens = self.tokens(seq, budget)
                step.work.append(Scheduled(seq, num_tokens, self.manager.append(seq, num_tokens)))
                budget -= num_tokens


@wrong("Scheduler", "overtakes", "a stack in the place of a queue")
class Stack(Plain):
    def add(self, seq):
        self.waiting.appendleft(seq)


@wrong("Scheduler", "overtakes", "who was thrown out goes to the end of the queue")
class VictimLast(Plain):
    def preempt(self, step, victim):
        super().preempt(step, victim)
        self.waiting.rotate(-1)


@right("Scheduler")
class LetsInAnyway(Plain):
    """asks the queue after a preemption, too: nobody fits then"""

    def schedule(self):
        step = Schedule()
        self.let_in(step, self.run(step, self.config.max_num_batched_tokens))
        return step


@wrong("Scheduler", "cuts_a_prompt")
class AlwaysChunks(Plain):
    """chunks, though they are off"""

    def fits_into_the_step(self, seq, hits, budget):
        return True


@wrong("Scheduler", "ignores_the_watermark")
class NoWatermark(Plain):
    """no watermark"""

    def watermark(self):
        return 0


@wrong("Scheduler", "never_starts")
class WatermarkForAll(Plain):
    """the watermark in an empty engine, too"""

    def watermark(self):
        return int(self.config.watermark * self.manager.num_blocks)


@wrong("Scheduler", "never_comes_back")
class VictimDropped(Plain):
    """who was thrown out is in no queue any more"""

    def preempt(self, step, victim):
        super().preempt(step, victim)
        self.waiting.remove(victim)


@wrong("Scheduler", "static_batching")
class StaticBatching(Plain):
    """nobody joins before all are done"""

    def let_in(self, step, budget):
        if not step.work:
            super().let_in(step, budget)


@wrong("Scheduler", "stops_too_early", "one new sequence a step")
class OneAStep(Plain):
    def let_in(self, step, budget):
        waiting, self.waiting = self.waiting, deque(list(self.waiting)[:1])
        super().let_in(step, budget)
        self.waiting = waiting if self.waiting else deque(list(waiting)[1:])


@wrong("Scheduler", "ignores_hits")
class ForgetsHits(Plain):
    """what admit returns is dropped"""

    def start(self, seq, hits):
        super().start(seq, hits)
        seq.num_computed_tokens = 0


@wrong("Scheduler", "wastes_the_budget")
class FixedChunks(Plain):
    """chunks of four, whatever the budget"""

    def tokens(self, seq, budget):
        return min(seq.num_uncomputed_tokens, budget, 4)


@wrong("Scheduler", "loses_tokens")
class OutputGone(Plain):
    """the output of a victim is thrown away"""

    def preempt(self, step, victim):
        super().preempt(step, victim)
        del victim.token_ids[victim.prompt_len :]


@wrong("Scheduler", "victim_keeps_its_count")
class CountStays(Plain):
    """a victim's tokens still count as computed"""

    def preempt(self, step, victim):
        computed = victim.num_computed_tokens
        super().preempt(step, victim)
        victim.num_computed_tokens = computed


@wrong("Scheduler", "victim_keeps_its_blocks")
class BlocksOfItsOwn(Plain):
    """a victim that gave way itself keeps its blocks"""

    def preempt(self, step, victim):
        if victim is self.asking:
            self.running.remove(victim)
            victim.num_computed_tokens = 0
            self.waiting.appendleft(victim)
            step.preempted.append(victim)
        else:
            super().preempt(step, victim)

    def room(self, step, seq, num_tokens):
        self.asking = seq
        return super().room(step, seq, num_tokens)


# 8.4 ttft_and_tpot


@right("ttft_and_tpot")
def by_the_ends(arrival, token_times):
    """first and last"""
    ttft = token_times[0] - arrival
    if len(token_times) == 1:
        return ttft, None
    return ttft, (token_times[-1] - token_times[0]) / (len(token_times) - 1)


@right("ttft_and_tpot")
def mean_of_gaps(arrival, token_times):
    """the mean of all gaps, in a list"""
    gaps = [after - before for before, after in pairwise(token_times)]
    return [token_times[0] - arrival, mean(gaps) if gaps else None]


@right("ttft_and_tpot")
def numpy_floats(arrival, token_times):
    """numpy floats"""
    gaps = np.diff(np.array([arrival, *token_times]))
    return gaps[0], gaps[1:].mean() if len(gaps) > 1 else None


@wrong("ttft_and_tpot", "unwritten", general=True)
def stub_of_latency(arrival, token_times):
    """the stub"""


@wrong("ttft_and_tpot", "not_a_pair", general=True)
def ttft_only(arrival, token_times):
    """only the first of the two"""
    return token_times[0] - arrival


@wrong("ttft_and_tpot", "not_a_number", general=True)
def with_units(arrival, token_times):
    """text with a unit"""
    ttft, tpot = by_the_ends(arrival, token_times)
    return f"{ttft} s", tpot


@wrong("ttft_and_tpot", "mutates", general=True)
def pops_the_first(arrival, token_times):
    """takes the first token out of the caller's list"""
    first = token_times.pop(0)
    return first - arrival, (token_times[-1] - first) / len(token_times) if token_times else None


@wrong("ttft_and_tpot", "ignores_the_arrival")
def from_zero(arrival, token_times):
    """the clock's time, not the wait"""
    return token_times[0], by_the_ends(arrival, token_times)[1]


@wrong("ttft_and_tpot", "divides_by_all_tokens")
def by_the_number_of_tokens(arrival, token_times):
    """divides by the number of tokens"""
    if len(token_times) == 1:
        return token_times[0] - arrival, None
    return token_times[0] - arrival, (token_times[-1] - token_times[0]) / len(token_times)


@wrong("ttft_and_tpot", "counts_the_first_wait")
def whole_time_by_tokens(arrival, token_times):
    """the whole time by the number of tokens"""
    return token_times[0] - arrival, (token_times[-1] - arrival) / len(token_times)


@wrong("ttft_and_tpot", "swapped")
def tpot_first(arrival, token_times):
    """TPOT first"""
    ttft, tpot = by_the_ends(arrival, token_times)
    return tpot, ttft


@wrong("ttft_and_tpot", "not_divided")
def all_the_rest(arrival, token_times):
    """the time of all later tokens together"""
    rest = token_times[-1] - token_times[0] if len(token_times) > 1 else None
    return token_times[0] - arrival, rest


@wrong("ttft_and_tpot", "last_gap")
def only_the_last_gap(arrival, token_times):
    """the last gap"""
    return token_times[0] - arrival, token_times[-1] - token_times[-2] if len(token_times) > 1 else None


@wrong("ttft_and_tpot", "zero_for_none")
def zero(arrival, token_times):
    """0 where there is no later token"""
    return token_times[0] - arrival, by_the_ends(arrival, token_times)[1] or 0.0


@wrong("ttft_and_tpot", "divides_by_zero")
def no_single_token(arrival, token_times):
    """no thought of a single token"""
    return token_times[0] - arrival, (token_times[-1] - token_times[0]) / (len(token_times) - 1)


@wrong("ttft_and_tpot", "milliseconds")
def in_milliseconds(arrival, token_times):
    """milliseconds"""
    ttft, tpot = by_the_ends(arrival, token_times)
    return 1000 * ttft, tpot and 1000 * tpot


@wrong("ttft_and_tpot", "wrong_tpot")
def largest_gap(arrival, token_times):
    """the largest gap"""
    gaps = [after - before for before, after in pairwise(token_times)]
    return token_times[0] - arrival, max(gaps, default=None)


@wrong("ttft_and_tpot", "wrong_ttft")
def last_token(arrival, token_times):
    """from the arrival to the last token"""
    return token_times[-1] - arrival, by_the_ends(arrival, token_times)[1]


# 8.5 choose_next


@right("choose_next")
def ageing(waiting):
    """short ones first, and each step of waiting counts like eight tokens less"""
    return min(waiting, key=lambda one: one.prompt_len - 8 * one.waited)


@right("choose_next")
def sorted_by_age(waiting):
    """the same with ten, by sorting"""
    return sorted(waiting, key=lambda one: (one.prompt_len - 10 * one.waited, -one.waited))[0]


@right("choose_next")
def share_waited(waiting):
    """who waited longest for its length (highest response ratio next)"""
    return max(waiting, key=lambda one: (one.waited + one.prompt_len / 24) / (one.prompt_len + 60))


wrong("choose_next", "not_a_function", "a number in the place of a function", general=True)(8)


@wrong("choose_next", "unwritten", general=True)
def stub_of_the_policy(waiting):
    """the stub"""


@wrong("choose_next", "mutates", general=True)
def takes_it_out(waiting):
    """takes the chosen one out of the list"""
    return waiting.pop(0)


@wrong("choose_next", "not_one_of_them")
def place_of_it(waiting):
    """its place in the list"""
    return min(range(len(waiting)), key=lambda i: waiting[i].prompt_len)


@wrong("choose_next", "is_first_come")
def first_come(waiting):
    """first come, first served"""
    return waiting[0]


@wrong("choose_next", "is_first_come", "who waited longest")
def longest_wait(waiting):
    return max(waiting, key=lambda one: one.waited)


@wrong("choose_next", "starves_somebody")
def shortest(waiting):
    """the shortest, always"""
    return min(waiting, key=lambda one: one.prompt_len)


@wrong("choose_next", "worse_than_first_come")
def longest(waiting):
    """the longest first"""
    return max(waiting, key=lambda one: one.prompt_len)


@wrong("choose_next", "too_little")
def hardly_ageing(waiting):
    """age counts so much that it is nearly first come, first served"""
    return min(waiting, key=lambda one: one.prompt_len - 25 * one.waited)


@wrong("choose_next", "worse_than_first_come", "the newest first")
def newest(waiting):
    return min(waiting, key=lambda one: one.waited)
