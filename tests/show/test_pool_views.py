"""The pool views show what is in the snapshot: every block, its state, its owner, its holders, its filling."""

import io

import matplotlib.image
import numpy as np
import pytest

from pagedkv_lab.blocks.manager import BlockManager
from pagedkv_lab.blocks.snapshot import CACHED, FREE, USED, PoolSnapshot
from pagedkv_lab.show import pool_picture, pool_text
from pagedkv_lab.show.pool import pool_counts
from pagedkv_lab.show.style import SEQUENCE_COLOURS, sequence_colour, text_on


def snapshot(num_blocks: int, block_size: int = 16, **blocks: tuple[int, int, int, int]) -> PoolSnapshot:
    """A pool of free blocks, but for b3=(state, owner, holders, filled) and the like."""
    state = np.zeros(num_blocks, np.uint8)
    owner, holders, filled = (np.zeros(num_blocks, np.int64) for _ in range(3))
    for name, values in blocks.items():
        block = int(name[1:])
        state[block], owner[block], holders[block], filled[block] = values
    return PoolSnapshot(block_size, 7, state, holders, filled, owner, np.zeros(num_blocks, np.int64))


FOUR_KINDS = {"b0": (USED, 1, 1, 16), "b1": (USED, 2, 1, 5), "b2": (USED, 1, 3, 16), "b4": (CACHED, 0, 0, 0)}


def grid(text: str) -> str:
    """The characters of the blocks, without the first and the last line and without spaces."""
    return "".join(text.splitlines()[1:-1]).replace(" ", "")


def pixels(picture) -> np.ndarray:
    """The picture as (height, width, 4) numbers from 0 to 1."""
    return matplotlib.image.imread(io.BytesIO(picture.png()))


def share_of(colour: str, picture) -> float:
    """The share of the picture's opaque pixels that have this colour."""
    image = pixels(picture)
    wanted = matplotlib.colors.to_rgb(colour)
    same = (np.abs(image[..., :3] - wanted).max(axis=-1) < 0.02) & (image[..., 3] > 0.98)
    return float(same.mean())


class TestText:
    def test_each_kind_of_block_has_its_character(self):
        assert grid(pool_text(snapshot(8, **FOUR_KINDS))) == "Ab3.:..."

    @pytest.mark.parametrize("num_blocks", [1, 16, 33, 512, 4096])
    def test_every_block_is_there_once(self, num_blocks):
        assert len(grid(pool_text(snapshot(num_blocks)))) == num_blocks

    def test_rows_fit_into_a_terminal(self):
        assert max(map(len, pool_text(snapshot(4096)).splitlines())) <= 80

    def test_a_block_of_more_than_nine_sequences_is_one_character_wide(self):
        assert grid(pool_text(snapshot(4, b0=(USED, 1, 100, 16)))) == "9..."

    def test_the_last_line_counts_the_blocks(self):
        last = pool_text(snapshot(8, **FOUR_KINDS)).splitlines()[-1]
        for words in ("free 4", "cached 1", "in use 3", "shared 1", "partly filled 1"):
            assert words in last

    def test_letters_begin_again_after_z(self):
        assert grid(pool_text(snapshot(2, b0=(USED, 26, 1, 16), b1=(USED, 27, 1, 16)))) == "ZA"


class TestPicture:
    def test_says_in_a_sentence_what_it_shows(self):
        assert str(pool_picture(snapshot(8, **FOUR_KINDS))) == (
            "8 blocks of 16 tokens: 4 free, 1 cached, 3 in use (1 shared, 1 partly filled)."
        )

    @pytest.mark.parametrize("num_blocks", [16, 64, 100, 512, 4096])
    def test_is_as_wide_as_a_page_and_not_higher_than_wide(self, num_blocks):
        width, height = pool_picture(snapshot(num_blocks)).get_size_inches()
        assert width == 7.8
        assert height < width

    def test_the_same_pool_gives_the_same_bytes(self):
        assert pool_picture(snapshot(64, **FOUR_KINDS)).png() == pool_picture(snapshot(64, **FOUR_KINDS)).png()

    def test_asking_twice_gives_the_same_bytes(self):
        picture = pool_picture(snapshot(64, **FOUR_KINDS))
        assert picture.png() == picture.png()

    def test_its_background_is_transparent_so_that_it_fits_a_dark_page_too(self):
        corner = pixels(pool_picture(snapshot(16)))[-1, -1]
        assert corner[3] == 0

    @pytest.mark.parametrize("seq_id", [2, 3, 4])
    def test_a_block_in_use_has_its_sequences_colour(self, seq_id):
        colour = sequence_colour(seq_id)
        one = share_of(colour, pool_picture(snapshot(16, b5=(USED, seq_id, 1, 16))))
        assert share_of(colour, pool_picture(snapshot(16))) == 0
        assert one > 0.005

    def test_a_half_filled_block_has_half_as_much_colour(self):
        # Sequence 2's colour: the legend uses sequence 1's.
        full, half = (
            share_of(sequence_colour(2), pool_picture(snapshot(16, b5=(USED, 2, 1, filled)))) for filled in (16, 8)
        )
        assert half == pytest.approx(full / 2, rel=0.1)

    def test_a_shared_block_looks_different_with_each_number_of_holders(self):
        images = [pool_picture(snapshot(16, b5=(USED, 2, holders, 16))).png() for holders in (1, 2, 3)]
        assert len(set(images)) == 3

    def test_a_cached_block_looks_neither_free_nor_in_use(self):
        kinds = ((FREE, 0, 0, 0), (CACHED, 0, 0, 0), (USED, 1, 1, 16))
        looks = {pool_picture(snapshot(16, b5=values)).png() for values in kinds}
        assert len(looks) == 3

    def test_sequences_are_named_while_their_colours_differ(self):
        two = pool_picture(snapshot(16, b0=(USED, 1, 1, 16), b1=(USED, 5, 1, 16)))
        words = [text.get_text() for text in two.axes[0].texts]
        assert "sequence 1" in words
        assert "sequence 5" in words
        many = snapshot(16, **{f"b{i}": (USED, i + 1, 1, 16) for i in range(len(SEQUENCE_COLOURS) + 1)})
        assert not any("sequence" in text.get_text() for text in pool_picture(many).axes[0].texts)


def test_counts_agree_with_the_managers_own():
    manager = BlockManager(8, 4)

    class Seq:
        def __init__(self, seq_id, tokens):
            self.seq_id, self.name, self.token_ids = seq_id, f"request {seq_id}", tokens
            self.num_computed_tokens, self.block_keys, self.extra_keys = 0, [], ()

    first, second, third = Seq(1, list(range(10))), Seq(2, list(range(9))), Seq(3, [50, 51, 52, 53])
    for seq in (third, first, second):
        seq.num_computed_tokens = manager.admit(seq, manager.lookup(seq))
        manager.append(seq, len(seq.token_ids) - seq.num_computed_tokens)
        manager.commit_step()
    manager.free(third)

    counts = pool_counts(manager.snapshot())
    assert counts == {"free": 3, "cached": 1, "in use": 4, "shared": 2, "partly filled": 2}
    pool = manager.counts()
    assert (pool.free, pool.cached, pool.used) == (counts["free"], counts["cached"], counts["in use"])


@pytest.mark.parametrize(
    ("colour", "ink"), [("#000000", "white"), ("#ffffff", "black"), ("#E69F00", "black"), ("#0072B2", "white")]
)
def test_text_on_a_colour_is_the_one_that_is_read_more_easily(colour, ink):
    assert text_on(colour) == ink
