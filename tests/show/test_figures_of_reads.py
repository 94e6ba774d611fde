"""The picture of attention's reads: order, what was read twice, what was missed, what was somebody else's."""

import numpy as np
import pytest
import torch
from looking import is_on_the_page, share_of, texts

from pagedkv_lab.show.figures import attention_reads
from pagedkv_lab.show.style import ORANGE, RED

# One sequence of 6 tokens in blocks 3 and 1 of 4 slots: slots 12 to 15, 4 and 5.
OWN = [12, 13, 14, 15, 4, 5]


def draw(reads, tables=((3, 1),), lens=(6,), num_blocks=5, block_size=4):
    return attention_reads(reads, tables, lens, block_size=block_size, num_blocks=num_blocks)


def test_says_that_everything_was_read_once():
    assert str(draw([OWN])) == (
        "sequence 1 reads 6 of its 6 slots in 6 reads: 0 more than once, 0 not at all, and 0 slots that are not its "
        "own."
    )


def test_says_what_was_read_twice_missed_and_not_its_own():
    assert str(draw([[12, 13, 12, 14, 6, 0]])) == (
        "sequence 1 reads 3 of its 6 slots in 6 reads: 1 more than once, 3 not at all, and 2 slots that are not its "
        "own (0, 6)."
    )


def test_a_number_is_the_order_of_the_first_read():
    picture = draw([[14, 12, 14, 13]], num_blocks=100)  # of so many blocks, 1 and 3 are drawn
    numbers = [text for text in texts(picture) if text.isdigit()]
    assert numbers == ["1", "3", "2", "3", "1"]  # block 1, no reads; block 3: slots 12, 13, 14


def test_red_is_only_what_is_not_its_own():
    legend = share_of(RED, draw([OWN]))
    assert share_of(RED, draw([[*OWN, 0, 1, 2]])) > legend * 2


def test_what_is_read_twice_is_ringed():
    legend = share_of(ORANGE, draw([OWN]))
    assert share_of(ORANGE, draw([OWN * 2])) > legend * 2


def test_each_sequence_has_its_panel_and_its_own_slots():
    picture = draw([OWN, OWN], tables=[[3, 1], [0, 2]], lens=[6, 5])
    assert "sequence 1 reads 6 of its 6" in str(picture)
    assert "sequence 2 reads 0 of its 5 slots in 6 reads: 0 more than once, 5 not at all, and 6 slots" in str(picture)


def test_names_are_taken_from_the_mapping():
    assert "program (0, 1) reads 6 of its 6 slots" in str(draw({"program (0, 1)": OWN}))


def test_one_flat_list_is_what_all_sequences_read_together():
    says = str(draw([*OWN, 0, 1], tables=[[3, 1], [0, 2]], lens=[6, 2]))
    assert says.startswith("the batch of 2 sequences reads 8 of its 8 slots in 8 reads")


def test_arrays_and_tensors_are_lists_too():
    for reads in ([np.array(OWN)], [torch.tensor(OWN)], np.array([OWN]), np.array(OWN), torch.tensor(OWN)):
        assert "6 of its 6 slots in 6 reads" in str(draw(reads, tables=torch.tensor([[3, 1]]), lens=torch.tensor([6])))


def test_what_stands_behind_a_tables_last_block_does_not_matter():
    assert "6 of its 6" in str(draw([OWN], tables=[[3, 1, -1, 999]]))


def test_nothing_read_is_a_picture_that_says_so():
    for reads in ([], [[]]):
        assert str(draw(reads)).startswith("sequence 1 reads 0 of its 6 slots in 0 reads")


@pytest.mark.parametrize("block_size", [1, 4, 16, 32, 128])
def test_blocks_of_any_size_stay_on_the_page(block_size):
    own = list(range(2 * block_size))
    picture = draw([own], tables=[[0, 1]], lens=[2 * block_size], num_blocks=512, block_size=block_size)
    assert is_on_the_page(picture)
    assert f"{2 * block_size} of its {2 * block_size} slots" in str(picture)


def test_many_blocks_and_many_sequences_are_counted_and_left_out():
    picture = draw([range(16 * 60)], tables=[range(60)], lens=[16 * 60], num_blocks=64, block_size=16)
    assert any("12 blocks left out here" in text for text in texts(picture))
    picture = draw([OWN] * 8, tables=[[3, 1]] * 8, lens=[6] * 8)
    assert "2 more sequences are left out" in texts(picture)


@pytest.mark.parametrize(
    ("reads", "tables", "lens", "message"),
    [
        ([OWN], [], [], "no sequence to draw"),
        ([OWN, OWN], [[3, 1]], [6], "2 lists of reads and 1 sequences"),
        ([[20]], [[3, 1]], [6], "sequence 1: slot 20 is not in a pool of 5 blocks of 4"),
        ([[-1]], [[3, 1]], [6], "sequence 1: slot -1 is not"),
        ([OWN], [[3]], [6], "sequence 1: 6 tokens don't fit into 1 blocks of 4"),
        ([OWN], [[3, 9]], [6], "sequence 1: block 9 is not in a pool of 5 blocks"),
    ],
)
def test_what_can_not_be_drawn_is_refused_in_words(reads, tables, lens, message):
    with pytest.raises(ValueError, match=message):
        draw(reads, tables, lens)
