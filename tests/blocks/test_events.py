"""What the manager tells of its blocks is enough to know who holds what: replayed, it gives the pool's own picture.

The lives that sequences lead here are those of `test_block_layer_machine`, with a listener that knows nothing but the
events. After every operation its books are held against the snapshot.
"""

from collections import Counter

import pytest
from article_parts import manager_of
from fakes import FakeSequence, admit, compute, serve
from test_block_layer_machine import ArticlePartsMachine, BlockLayerMachine, run

from pagedkv_lab.blocks import BlockManager
from pagedkv_lab.blocks import manager as manager_module
from pagedkv_lab.blocks.events import BlockEvent
from pagedkv_lab.blocks.snapshot import CACHED


class Hearsay:
    """Who holds what, and what can be found, as far as the events say."""

    def __init__(self):
        self.tables: dict[int, list[int]] = {}
        self.findable: set[int] = set()

    def __call__(self, event: BlockEvent) -> None:
        table = self.tables.setdefault(event.seq.seq_id, []) if event.seq else []
        holders = self.holders()
        if event.kind == "hit":
            assert not table, "hits come first"
            assert set(event.blocks) <= self.findable, "hit, and nobody said that it can be found"
            table += event.blocks
        elif event.kind == "allocate":
            assert not any(holders[block] for block in event.blocks), "taken while somebody holds it"
            self.findable.difference_update(event.blocks)
            table += event.blocks
        elif event.kind == "copy":
            source, destination = event.blocks
            assert table.pop() == destination, "a copy's destination is the block that was taken just before"
            assert holders[source] > 1, "copied, and nobody else reads it"
            table[table.index(source)] = destination
        elif event.kind == "fork":
            table += event.blocks
        elif event.kind == "findable":
            assert set(event.blocks) <= set(table)
            self.findable.update(event.blocks)
        elif event.kind == "forget":
            self.findable.difference_update(event.blocks)
        elif event.kind == "free":
            assert tuple(table) == event.blocks
            del self.tables[event.seq.seq_id]

    def holders(self) -> Counter:
        return Counter(block for table in self.tables.values() for block in table)


def assert_hearsay_is_the_truth(heard: Hearsay, manager: BlockManager) -> None:
    snapshot = manager.snapshot()
    holders = heard.holders()
    assert snapshot.ref_count.tolist() == [holders[block] for block in range(manager.num_blocks)]
    # One that came in without a hit and got no block yet has an empty table that nobody has told of.
    assert {i: table.tolist() for i, table in snapshot.tables.items() if len(table)} == heard.tables
    cached = {block for block in range(manager.num_blocks) if snapshot.state[block] == CACHED}
    assert cached == {block for block in heard.findable if not holders[block]}


def listened_to(manager: BlockManager) -> BlockManager:
    manager.heard = Hearsay()
    manager.listeners.append(manager.heard)
    return manager


class ListenedTo:
    """For a machine: after every operation, the books of the listener are held against the snapshot."""

    def did(self, operation):
        super().did(operation)
        assert_hearsay_is_the_truth(self.manager.heard, self.manager)


class ListenedToMachine(ListenedTo, BlockLayerMachine):
    @staticmethod
    def make_manager(num_blocks, block_size):
        return listened_to(BlockManager(num_blocks, block_size))


class ListenedToArticlePartsMachine(ListenedTo, ArticlePartsMachine):
    @staticmethod
    def make_manager(num_blocks, block_size):
        return listened_to(manager_of(num_blocks, block_size))


@pytest.mark.parametrize("machine", [ListenedToMachine, ListenedToArticlePartsMachine])
def test_whoever_hears_all_events_knows_the_pool(machine):
    seen = run(machine, lives=40, at_least=10)
    assert seen["operations"] >= 1_500, f"{seen['operations']} operations are too few"


def a_life(manager: BlockManager) -> None:
    """A prompt, the same again, a fork of it of which both write, a step that fails, an eviction."""
    first = FakeSequence(1, [1, 2, 3, 4, 5, 6])
    serve(manager, first)
    second = FakeSequence(2, [1, 2, 3, 4, 7])
    serve(manager, second)
    third = first.fork(3)
    manager.fork(first, third)
    for seq, token in ((third, 8), (first, 9)):
        seq.token_ids.append(token)
        compute(manager, seq)
    manager.take_copies()
    manager.commit_step()
    manager.free(second)
    failing = FakeSequence(4, [5, 5, 5, 5])
    admit(manager, failing)
    compute(manager, failing)
    manager.abandon_step()
    manager.free(failing)
    manager.free(first)
    manager.free(third)
    serve(manager, FakeSequence(5, list(range(20, 36))))


def told(manager: BlockManager) -> list[tuple]:
    """(kind, sequence's id or None, blocks, tokens) of each event in `a_life`."""
    events = []
    manager.listeners.append(lambda event: events.append((event.kind, event.seq and event.seq.seq_id, *event[2:])))
    a_life(manager)
    return events


def test_a_life_is_told_in_this_order_and_with_these_blocks():
    assert told(BlockManager(8, 2)) == [
        ("allocate", 1, (0, 1, 2), 0),
        ("findable", 1, (0, 1, 2), 0),
        ("hit", 2, (0, 1), 4),
        ("allocate", 2, (3,), 0),
        ("fork", 3, (0, 1, 2), 0),
        ("allocate", 3, (4,), 0),  # its own next block: the last one was full
        ("allocate", 1, (5,), 0),
        ("free", 2, (0, 1, 3), 0),
        ("allocate", 4, (3, 6), 0),
        ("findable", 4, (3, 6), 0),
        ("forget", None, (3, 6), 0),
        ("free", 4, (3, 6), 0),
        ("free", 1, (0, 1, 2, 5), 0),
        ("free", 3, (0, 1, 2, 4), 0),
        # Empty ones first, the last one freed before the others, then those that could still be found, tail first.
        ("allocate", 5, (4, 5, 3, 6, 7, 2, 1, 0), 0),
        ("findable", 5, (4, 5, 3, 6, 7, 2, 1, 0), 0),
    ]


def test_a_copy_says_from_where_to_where_after_its_block_was_taken():
    manager = BlockManager(4, 4)
    parent = FakeSequence(1, [1, 2, 3])
    serve(manager, parent)
    child = parent.fork(2)
    manager.fork(parent, child)
    events = []
    manager.listeners.append(events.append)
    child.token_ids.append(4)
    compute(manager, child)
    assert [(event.kind, event.seq.seq_id, event.blocks) for event in events] == [
        ("allocate", 2, (1,)),
        ("copy", 2, (0, 1)),
        ("findable", 2, (1,)),
    ]
    events.clear()
    parent.token_ids.append(5)
    compute(manager, parent)
    assert [event.kind for event in events] == ["findable"], "it is alone now, and writes in place"


def test_parts_of_the_article_s_shape_have_the_same_told_of_them():
    """Their free list is another one, so the numbers differ: what happens to how many blocks of whom must not."""

    def without_numbers(events):
        return [(kind, seq_id, len(blocks), num_tokens) for kind, seq_id, blocks, num_tokens in events]

    assert without_numbers(told(manager_of(8, 2))) == without_numbers(told(BlockManager(8, 2)))


def test_a_request_that_gets_no_room_tells_of_nothing():
    manager = BlockManager(2, 2)
    serve(manager, FakeSequence(1, [1, 2, 3]))
    late = FakeSequence(2, [4, 5, 6])
    events = []
    manager.listeners.append(events.append)
    admit(manager, late)
    assert manager.append(late, 3) is None
    assert events == []


@pytest.mark.parametrize("make", [BlockManager, manager_of])
def test_with_nobody_there_no_event_is_made(monkeypatch, make):
    def refuse(*args):
        raise AssertionError("an event was made for nobody")

    monkeypatch.setattr(manager_module, "BlockEvent", refuse)
    a_life(make(8, 2))


def test_several_listeners_hear_the_same():
    manager = BlockManager(8, 2)
    heard = [[], [], []]
    manager.listeners += [events.append for events in heard]
    a_life(manager)
    assert heard[0] == heard[1] == heard[2] != []
