"""The quantized pool: what a sequence reads is what it wrote, quantized where its block is full, whatever others do."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedkv_lab.attention import BACKENDS
from pagedkv_lab.kv import LayerShape, QuantizedKVPool, QuantizedTensor
from pagedkv_lab.kv.quantize import dequantize, quantize
from pagedkv_lab.sizing import KVQuantization, kv_bytes_per_token

NUM_BLOCKS, BLOCK_SIZE = 10, 4
#: Two layers that differ, and keys that are as wide as values in neither.
UNLIKE = (LayerShape(num_kv_heads=2, key_dim=4, value_dim=6), LayerShape(num_kv_heads=1, key_dim=8, value_dim=2))
KINDS = [KVQuantization(bits, axis) for bits in (8, 4) for axis in ("token", "channel")]
NAMES = [f"int{kind.bits}-{kind.key_axis}" for kind in KINDS]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=NAMES)


def make_pool(kind, layers=UNLIKE, num_seqs=3, **options):
    num_tails = kind.num_tails(num_seqs)
    return QuantizedKVPool(layers, NUM_BLOCKS, BLOCK_SIZE, kind, num_tails=num_tails, **options)


def tensors(pool):
    """All of a pool's tensors."""
    quantized = [tensor for side in (*pool.keys, *pool.values) for tensor in side.tensors]
    return [*quantized, *pool.tail_keys, *pool.tail_values]


class Sequences:
    """Sequences over a pool, and what they wrote as plain tensors: the truth that the pool is held against.

    A block table is a list; `held` counts who holds a block, as a manager does.
    """

    def __init__(self, pool, layers=UNLIKE, seed=0):
        self.pool, self.layers = pool, layers
        self.generator = torch.Generator().manual_seed(seed)
        self.written = []  # a sequence's keys and values by layer: (length, heads, dim) each
        self.tables = []
        self.held = [0] * pool.num_blocks
        pool.start_anew(lambda block: self.held[block] > 0)

    def length(self, i):
        return len(self.written[i][0][0])

    def start(self):
        nothing = [(torch.zeros(0, n, k), torch.zeros(0, n, v)) for n, k, v in self.layers]
        self.written.append(nothing)
        self.tables.append([])
        return len(self.tables) - 1

    def fork(self, i):
        self.written.append(self.written[i])
        self.tables.append(list(self.tables[i]))
        for block in self.tables[i]:
            self.held[block] += 1

    def free(self, i):
        for block in self.tables.pop(i):
            self.held[block] -= 1
        self.written.pop(i)

    def grow(self, counts):
        """One step: sequence i gets counts[i] tokens. Those that don't fit into the pool are left out."""
        copies, slots, new = [], [], [([], []) for _ in self.layers]
        for i, count in enumerate(counts):
            for _ in range(count):
                position, table = self.length(i), self.tables[i]
                if position % BLOCK_SIZE == 0 or self.held[table[-1]] > 1:
                    if 0 not in self.held:
                        break
                    block = self.held.index(0)
                    self.held[block] = 1
                    if position % BLOCK_SIZE == 0:
                        table.append(block)
                    else:
                        self.held[table[-1]] -= 1
                        copies.append((table[-1], block))
                        table[-1] = block
                slots.append(table[-1] * BLOCK_SIZE + position % BLOCK_SIZE)
                token = [(self.random(1, heads, k), self.random(1, heads, v)) for heads, k, v in self.layers]
                self.written[i] = [
                    (torch.cat([keys, key]), torch.cat([values, value]))
                    for (keys, values), (key, value) in zip(self.written[i], token, strict=True)
                ]
                for (keys, values), (key, value) in zip(new, token, strict=True):
                    keys.append(key)
                    values.append(value)
        self.begin_step(copies, slots)
        for layer, (keys, values) in enumerate(new):
            if slots:
                self.pool.write(layer, torch.tensor(slots), torch.cat(keys), torch.cat(values))

    def random(self, *shape):
        return torch.randn(shape, generator=self.generator) * 3 + 1

    def begin_step(self, copies=(), slots=(), lengths=None):
        lengths = np.array(lengths or [self.length(i) for i in range(len(self.tables))], np.int32)
        self.block_tables = np.zeros((len(self.tables), max(map(len, self.tables), default=0) + 1), np.int32)
        for row, table in zip(self.block_tables, self.tables, strict=True):
            row[: len(table)] = table
            row[len(table) :] = NUM_BLOCKS - 1  # what stands behind a table is nothing to read
        self.pool.begin_step(list(copies), np.array(slots, np.int64), self.block_tables, lengths)

    def poison(self):
        """Blocks and tails that nobody holds are full of NaN from now on."""
        free = torch.tensor([held == 0 for held in self.held])
        for side in (*self.pool.keys, *self.pool.values):
            side.data[free] = 127
            side.scale[free] = float("nan")
        if self.pool.tails:
            used = {int(self.pool.tails.row_of[block]) for block, held in enumerate(self.held) if held}
            unused = torch.tensor([row not in used for row in range(self.pool.tails.num_tails)])
            for tail in (*self.pool.tail_keys, *self.pool.tail_values):
                tail[unused] = float("nan")

    def expected(self, i, layer):
        """Keys and values of a sequence as they should be read: quantized token by token, or block by block."""
        kind = self.pool.quantization
        return [
            as_read(x, kind.bits, axis, kind.has_tails)
            for x, axis in zip(self.written[i][layer], (kind.key_axis, "token"), strict=True)
        ]

    def read(self, i, layer):
        """Keys and values of a sequence through the tables that the pool gives for reading."""
        keys, values, tables = self.pool.read(layer, torch.from_numpy(self.block_tables))
        assert tables.dtype == torch.int32
        assert len(keys) == len(values) == len({block for table in self.tables for block in table})
        position = torch.arange(self.length(i))
        slot = tables[i, position // BLOCK_SIZE].long(), position % BLOCK_SIZE
        return keys[slot], values[slot]

    def check(self):
        for i in range(len(self.tables)):
            for layer in range(len(self.layers)):
                for read, expected in zip(self.read(i, layer), self.expected(i, layer), strict=True):
                    torch.testing.assert_close(read, expected, rtol=0, atol=0)


def as_read(x, bits, axis, has_tails):
    """(length, heads, dim): full blocks quantized, the rest exact where there are tails."""
    if not has_tails:
        return dequantize(quantize(x, bits, axis), axis)
    full = len(x) // BLOCK_SIZE * BLOCK_SIZE
    blocks = x[:full].unflatten(0, (-1, BLOCK_SIZE))
    return torch.cat([dequantize(quantize(blocks, bits, axis), axis).flatten(0, 1), x[full:]]) if full else x


# Sizes


@every_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_pool_weighs_what_the_arithmetic_says(kind, dtype):
    pool = make_pool(kind, num_seqs=5, dtype=dtype)
    data = sum(kind.data_bytes(*layer) for layer in UNLIKE)
    scales = sum(kind.scale_bytes(layer.num_kv_heads, layer.key_dim, BLOCK_SIZE) for layer in UNLIKE)
    tail = BLOCK_SIZE * sum(layer.numbers_per_token for layer in UNLIKE) * dtype.itemsize
    assert pool.nbytes == sum(tensor.nbytes for tensor in tensors(pool))
    assert pool.nbytes == NUM_BLOCKS * (BLOCK_SIZE * data + scales) + kind.num_tails(5) * tail
    assert bool(kind.num_tails(5)) == (kind.key_axis == "channel")


@pytest.mark.parametrize(("bits", "bytes_per_number"), [(8, 1), (4, 0.5)])
def test_the_data_take_half_and_a_quarter_of_16_bits(bits, bytes_per_number):
    shape = LayerShape(2, 8, 8)
    assert 3 * KVQuantization(bits).data_bytes(*shape) == kv_bytes_per_token(3, 2, 8, bytes_per_number)
    pool = QuantizedKVPool([shape] * 3, 7, 5, KVQuantization(bits))
    data = sum(side.data.nbytes for side in (*pool.keys, *pool.values))
    assert data == 7 * 5 * kv_bytes_per_token(3, 2, 8, bytes_per_number)


@every_kind
def test_kernels_get_the_layouts_that_they_read(kind):
    pool = make_pool(kind)
    layer = pool.layer(0)
    by_token, by_channel = (NUM_BLOCKS, BLOCK_SIZE, 2), (NUM_BLOCKS, 2, 4)
    per_byte = 8 // kind.bits
    assert layer.keys.data.shape == (NUM_BLOCKS, BLOCK_SIZE, 2, 4 // per_byte)
    assert layer.values.data.shape == (NUM_BLOCKS, BLOCK_SIZE, 2, 6 // per_byte)
    assert layer.keys.data.dtype == (torch.int8 if kind.bits == 8 else torch.uint8)
    assert layer.keys.scale.shape == (by_channel if kind.has_tails else by_token)
    assert layer.values.scale.shape == by_token
    assert {side.scale.dtype for side in layer[:2]} == {torch.float16}
    assert [side.zero is None for side in layer[:2]] == [kind.bits == 8] * 2
    if kind.has_tails:
        assert layer.tail_keys.shape == (6, BLOCK_SIZE, 2, 4)
        assert layer.tail_values.shape == (6, BLOCK_SIZE, 2, 6)
    else:
        assert layer[2:] == (None, None, None)


def test_heads_that_can_not_be_packed_are_refused_by_name():
    with pytest.raises(ValueError, match=r"int4 packs two numbers .* these values have 5 a head: take int8"):
        make_pool(KVQuantization(4), [LayerShape(1, 4, 5)])
    make_pool(KVQuantization(8), [LayerShape(1, 3, 5)])


# Writing and reading


@every_kind
def test_a_token_comes_back_quantized_and_all_other_slots_are_as_before(kind):
    pool = make_pool(kind)
    sequences = Sequences(pool)
    sequences.start()
    sequences.grow([6])
    before = [tensor.clone() for tensor in tensors(pool)]
    sequences.grow([1])
    blocks = sequences.tables[0]
    for old, new in zip(before, tensors(pool), strict=True):
        differs = {i for i in range(len(old)) if not torch.equal(old[i], new[i])}
        is_tail = any(new is tail for tail in (*pool.tail_keys, *pool.tail_values))
        if kind.has_tails:
            assert differs == ({int(pool.tails.row_of[blocks[1]])} if is_tail else set())
        else:
            assert differs == {blocks[1]}
            assert torch.equal(old[blocks[1], :2], new[blocks[1], :2])
    sequences.check()


@every_kind
@pytest.mark.parametrize("chunks", [[11], [1] * 11, [4, 4, 3], [3, 5, 3], [2, 2, 7]])
def test_in_whatever_pieces_a_prompt_comes_the_pool_holds_the_same(kind, chunks):
    pool = make_pool(kind)
    sequences = Sequences(pool)
    sequences.start()
    for chunk in chunks:
        sequences.grow([chunk])
        sequences.check()


@every_kind
def test_what_models_hand_over_as_views_is_written_too(kind):
    pool = make_pool(kind)
    key, value = torch.randn(2, 5, 4).transpose(0, 1), torch.randn(2, 5, 6).transpose(0, 1)
    assert not key.is_contiguous()
    pool.begin_step([], np.arange(5), np.array([[0, 1]], np.int32), np.array([5], np.int32))
    pool.write(0, torch.arange(5), key, value)
    keys, values, _ = pool.read(0, torch.tensor([[0, 1]], dtype=torch.int32))
    assert torch.equal(keys.flatten(0, 1)[:5], as_read(key.contiguous(), kind.bits, kind.key_axis, kind.has_tails))
    assert torch.equal(values.flatten(0, 1)[:5], as_read(value.contiguous(), kind.bits, "token", kind.has_tails))


@every_kind
def test_a_step_that_writes_nothing_reads_what_is_there(kind):
    sequences = Sequences(make_pool(kind))
    sequences.start()
    sequences.grow([8])
    sequences.grow([0])
    sequences.check()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@every_kind
def test_what_is_read_is_in_the_models_dtype(kind, dtype):
    pool = make_pool(kind, dtype=dtype)
    key, value = torch.randn(6, 2, 4).to(dtype), torch.randn(6, 2, 6).to(dtype)
    pool.begin_step([], np.arange(6), np.array([[0, 1]], np.int32), np.array([6], np.int32))
    pool.write(0, torch.arange(6), key, value)
    keys, values, _ = pool.read(0, torch.tensor([[0, 1]], dtype=torch.int32))
    assert keys.dtype == values.dtype == dtype
    if kind.has_tails:
        assert torch.equal(keys[1, :2], key[4:])
    torch.testing.assert_close(keys.flatten(0, 1)[:6], key, rtol=0, atol=0.3 if kind.bits == 4 else 0.05)


def test_a_block_that_two_name_is_made_plain_once():
    sequences = Sequences(make_pool(KVQuantization(8)))
    sequences.start()
    sequences.grow([6])
    sequences.fork(0)
    sequences.begin_step()
    keys, _, tables = sequences.pool.read(0, torch.from_numpy(sequences.block_tables))
    assert len(keys) == 2
    assert torch.equal(tables[0, :2], tables[1, :2])


def test_layers_of_one_shape_share_the_buffer_that_is_read():
    pool = make_pool(KVQuantization(4, "channel"), [LayerShape(2, 4, 4)] * 2)
    sequences = Sequences(pool, [LayerShape(2, 4, 4)] * 2)
    sequences.start()
    sequences.grow([6])
    first, second = (pool.read(layer, torch.from_numpy(sequences.block_tables)) for layer in (0, 1))
    assert first[0].data_ptr() == second[0].data_ptr()
    assert first[0].data_ptr() != first[1].data_ptr()


# Copies


@every_kind
def test_a_copy_goes_on_by_itself_and_the_original_stays(kind):
    pool = make_pool(kind)
    sequences = Sequences(pool)
    sequences.start()
    sequences.grow([6])
    sequences.fork(0)
    sequences.fork(0)
    sequences.grow([1, 3, 0])  # two of the three copy the block that is half full
    assert len({table[1] for table in sequences.tables}) == 3
    sequences.check()
    sequences.grow([0, 2, 4])
    sequences.check()


@every_kind
def test_copies_are_all_read_before_any_is_written(kind):
    """Block 1 is copied away and copied into, in either order."""
    for copies in ([(0, 1), (1, 2)], [(1, 2), (0, 1)]):
        pool = make_pool(kind)
        key, value = torch.randn(3, 2, 4), torch.randn(3, 2, 6)
        tables, lengths = np.array([[0], [1]], np.int32), np.array([2, 1], np.int32)
        pool.begin_step([], np.array([0, 1, 4]), tables, lengths)
        pool.write(0, torch.tensor([0, 1, 4]), key, value)
        tables = np.array([[1], [2]], np.int32)
        pool.begin_step(copies, np.array([], np.int64), tables, lengths)
        keys, values, named = pool.read(0, torch.from_numpy(tables))
        for read, x, axis in ((keys, key, kind.key_axis), (values, value, "token")):
            exact = as_read(x, kind.bits, axis, kind.has_tails)
            assert torch.equal(read[named[0, 0], :2], exact[:2])
            assert torch.equal(read[named[1, 0], :1], exact[2:])


# Starting anew


@every_kind
def test_after_a_step_that_failed_half_way_its_tokens_can_be_written_again(kind):
    pool = make_pool(kind, num_seqs=1)
    sequences = Sequences(pool)
    for attempt in range(5):
        sequences.start()
        sequences.grow([3])
        last_slot = sequences.tables[0][0] * BLOCK_SIZE + 3
        sequences.begin_step(slots=[last_slot], lengths=[4])  # is to fill the block, and then no layer runs
        sequences.free(0)
        sequences.poison()
        sequences.start()
        sequences.grow([4 + attempt])
        sequences.check()
        sequences.free(0)


def test_a_pool_that_starts_anew_has_all_its_tails():
    pool = make_pool(KVQuantization(4, "channel"), num_seqs=1)
    for _ in range(4):
        sequences = Sequences(pool)  # calls start_anew
        sequences.start()
        sequences.grow([3])
        sequences.grow([3])
        sequences.check()


# Whatever happens


@every_kind
@settings(max_examples=60)
@given(data=st.data())
def test_whatever_sequences_do_each_reads_what_it_wrote(kind, data):
    """Random writes, forks, copies and frees, with NaN in every block and tail that nobody holds."""
    sequences = Sequences(make_pool(kind, num_seqs=3), seed=data.draw(st.integers(0, 1000)))
    for _ in range(data.draw(st.integers(1, 12))):
        running = len(sequences.tables)
        action = data.draw(st.sampled_from(["grow", "grow", "start", "fork", "free"]))
        if action == "start" and running < 3:
            sequences.start()
        elif action == "fork" and 0 < running < 3:
            sequences.fork(data.draw(st.integers(0, running - 1)))
        elif action == "free" and running:
            sequences.free(data.draw(st.integers(0, running - 1)))
        sequences.poison()
        sequences.grow([data.draw(st.integers(0, 6)) for _ in sequences.tables])
        sequences.check()


@every_kind
@pytest.mark.parametrize("backend", BACKENDS)
def test_any_backend_attends_over_it_and_never_meets_what_nobody_holds(kind, backend):
    layers = (LayerShape(2, 8, 8),)
    pool = make_pool(kind, layers)
    sequences = Sequences(pool, layers)
    for length in (7, 12, 1):
        sequences.start()
        sequences.grow([0] * (len(sequences.tables) - 1) + [length])
    sequences.free(1)
    sequences.start()
    sequences.poison()
    sequences.grow([3, 1, 5])
    query_lens = [3, 1, 5]
    query = torch.randn(sum(query_lens), 4, 8, generator=torch.Generator().manual_seed(3))
    keys, values, tables = pool.read(0, torch.from_numpy(sequences.block_tables))
    lengths = [sequences.length(i) for i in range(3)]
    output = BACKENDS[backend](query, keys, values, tables, lengths, query_lens, scale=0.3)

    expected, start = [], 0
    for i, count in enumerate(query_lens):
        key, value = (x[None] for x in sequences.expected(i, 0))
        table = torch.zeros(1, 1, dtype=torch.int32)
        q = query[start : start + count]
        expected.append(BACKENDS["reference"](q, key, value, table, [lengths[i]], [count], scale=0.3))
        start += count
    torch.testing.assert_close(output, torch.cat(expected), rtol=1e-5, atol=1e-5)


def test_what_a_quantized_tensor_weighs_is_all_of_it():
    tensor = quantize(torch.randn(2, 4, 1, 8), 4, "token")
    assert isinstance(tensor, QuantizedTensor)
    assert tensor.nbytes == 2 * 4 * (4 + 2 + 2)
