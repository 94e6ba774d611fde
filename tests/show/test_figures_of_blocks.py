"""Pictures of tables, copies and chains: the blocks, tokens, counts and keys that were given, and what is wrong."""

import matplotlib.patches
import pytest
from looking import is_on_the_page, share_of, texts

from pagedkv_lab.blocks.hashing import hash_block
from pagedkv_lab.engine import Engine, SamplingParams, load_model
from pagedkv_lab.show.figures import block_table_arrows, copy_on_write, hash_chains
from pagedkv_lab.show.figures.page import clip, printable, text_width
from pagedkv_lab.show.style import BLUE, ORANGE, RED

SENTENCE = ["The", " cat", " sat", " on", " the", " mat"]


def arrows(picture) -> int:
    """How many arrows are drawn."""
    return sum(isinstance(patch, matplotlib.patches.PathPatch) for patch in picture.axes[0].patches)


class TestBlockTableArrows:
    def test_says_the_table_and_what_is_shared(self):
        picture = block_table_arrows(
            {"A": [7, 2], "B": [7, 4]}, {"A": SENTENCE, "B": [*SENTENCE[:4], " a", " sofa"]}, block_size=4, num_blocks=9
        )
        assert str(picture) == "Blocks of 4 tokens: A → 7, 2; B → 7, 4; shared: block 7 by 2."

    def test_each_entry_has_an_arrow_so_a_shared_block_gets_two(self):
        tokens = {"A": SENTENCE, "B": SENTENCE}
        assert arrows(block_table_arrows({"A": [7, 2]}, tokens, block_size=4)) == 2
        assert arrows(block_table_arrows({"A": [7, 2], "B": [7, 2]}, tokens, block_size=4)) == 4

    def test_tokens_stand_in_the_logical_and_in_the_physical_block(self):
        written = texts(block_table_arrows({"A": [7, 2]}, {"A": SENTENCE}, block_size=4, num_blocks=9))
        assert written.count("cat") == 2
        assert written.count("7") == 2  # in the table and in the pool
        assert written.count("3") == 1  # a block of nobody, in the pool only

    def test_a_partly_filled_block_is_coloured_as_far_as_it_is_filled(self):
        full, partly = (block_table_arrows({"A": [1]}, {"A": SENTENCE[:n]}, block_size=4) for n in (4, 1))
        assert 0.15 < share_of(BLUE, partly) / share_of(BLUE, full) < 0.45

    def test_of_a_large_pool_only_the_blocks_in_tables_are_drawn(self):
        picture = block_table_arrows({"A": [400, 2]}, {"A": SENTENCE}, block_size=4, num_blocks=512)
        assert {"⋮  blocks 0 to 1", "⋮  blocks 3 to 399", "⋮  blocks 401 to 511"} <= set(texts(picture))

    def test_a_long_table_is_cut_off_and_says_so(self):
        picture = block_table_arrows({"A": range(100)}, {"A": ["x"] * 400}, block_size=4, num_blocks=512)
        assert arrows(picture) == 12
        assert "88 more blocks" in texts(picture)
        assert "A → 0, 1, 2, …, 99 (100 blocks)" in str(picture)

    def test_holders_that_disagree_about_a_block_make_it_red(self):
        tables = {"A": [1, 5], "B": [1, 5]}
        fine = block_table_arrows(tables, {"A": SENTENCE, "B": SENTENCE}, block_size=4)
        wrong = block_table_arrows(tables, {"A": SENTENCE, "B": [*SENTENCE[:5], " rug"]}, block_size=4)
        assert share_of(RED, fine) == 0 < share_of(RED, wrong)
        assert "block 5 should hold different tokens for its holders" in str(wrong)
        assert any("≠" in text for text in texts(wrong))

    def test_a_fork_that_has_written_less_does_not_disagree(self):
        picture = block_table_arrows({"A": [1], "B": [1]}, {"A": SENTENCE[:4], "B": SENTENCE[:3]}, block_size=4)
        assert "should hold" not in str(picture)

    def test_long_and_strange_tokens_stay_in_their_place(self):
        tokens = ["Donaudampfschifffahrtsgesellschaft", "\n\n", "$x$", "日本", "😀", "", " ", "\t", "a\x00b"]
        for size in (3, 16):
            picture = block_table_arrows({"a name that is far too long for this page " * 3: [3, 1, 2]}, {
                "a name that is far too long for this page " * 3: tokens}, block_size=size)  # fmt: skip
            assert is_on_the_page(picture)
            picture.png()

    def test_a_real_table_of_the_engine(self):
        engine = Engine(load_model("toy"), block_size=4, num_gpu_blocks=16, max_model_len=64)
        engine.add_request(range(5, 16), SamplingParams(max_tokens=4, temperature=0, ignore_eos=True))
        engine.step()
        (seq,) = next(iter(engine.requests().values())).sequences
        table = engine.manager.block_table(seq)
        tokens = [str(token) for token in seq.token_ids[: seq.num_computed_tokens]]
        picture = block_table_arrows({seq.name: table}, {seq.name: tokens}, block_size=4, num_blocks=16)
        assert f"request 1 → {', '.join(map(str, table))}." in str(picture)

    @pytest.mark.parametrize(
        ("tables", "tokens", "message"),
        [
            ({}, {}, "no block table to draw"),
            ({"A": []}, {"A": []}, "no block table to draw"),
            ({"A": [1]}, {"A": SENTENCE}, "A has 6 tokens, which are 2 blocks of 4, and its table has 1"),
            ({"A": [99, 1]}, {"A": SENTENCE}, "A: block 99 is not in a pool of 9"),
            ({"A": [-1, 1]}, {"A": SENTENCE}, "A: block -1 is not in a pool of 9"),
            ({"A": [1, 2]}, {"A": "The cat"}, "A needs its tokens, as a list"),
            ({"A": [1, 2]}, {}, "A needs its tokens"),
            ({str(i): [1] for i in range(7)}, {str(i): ["a"] for i in range(7)}, "7 tables can't be told apart"),
        ],
    )
    def test_what_can_not_be_drawn_is_refused_in_words(self, tables, tokens, message):
        with pytest.raises(ValueError, match=message):
            block_table_arrows(tables, tokens, block_size=4, num_blocks=9)


class TestCopyOnWrite:
    BEFORE = ({"A": [3, 7], "B": [3, 7]}, {"A": SENTENCE, "B": SENTENCE})
    AFTER = ({"A": [3, 7], "B": [3, 9]}, {"A": SENTENCE, "B": [*SENTENCE, " sofa"]})

    def test_says_what_was_copied_and_how_the_counts_changed(self):
        assert str(copy_on_write(self.BEFORE, self.AFTER, block_size=4)) == (
            "Before: A → 3, 7; B → 3, 7; shared: block 3 by 2, block 7 by 2. "
            "After B wrote “sofa”: A → 3, 7; B → 3, 9; shared: block 3 by 2; block 7 was copied to block 9. "
            "Reference counts: block 7 2 → 1, block 9 0 → 1."
        )

    def test_the_copy_is_marked_and_the_counts_stand_beside_the_blocks(self):
        written = texts(copy_on_write(self.BEFORE, self.AFTER, block_size=4))
        assert "copy" in written
        assert written.count("refs") == 2
        assert {"0", "1", "2"} <= set(written)

    def test_where_what_was_written_is_too_long_the_title_says_who_wrote(self):
        after = (
            {"A": [3, 7], "B": [3, 9]},
            {"A": [*SENTENCE, " an umbrella stand"], "B": [*SENTENCE, " a grand piano"]},
        )
        assert "after A and B wrote" in texts(copy_on_write(self.BEFORE, after, block_size=4))

    def test_a_sole_owner_writes_in_place_and_nothing_is_copied(self):
        picture = copy_on_write(({"A": [3]}, {"A": ["a"]}), ({"A": [3]}, {"A": ["a", "b"]}), block_size=4)
        assert "copy" not in texts(picture)
        assert str(picture).endswith("nothing was copied. Reference counts: unchanged.")

    def test_a_write_into_a_shared_block_is_red(self):
        after = ({"A": [3, 7], "B": [3, 7]}, {"A": [*SENTENCE, " hat"], "B": [*SENTENCE, " sofa"]})
        picture = copy_on_write(self.BEFORE, after, block_size=4)
        assert share_of(RED, picture) > 0.005
        assert "block 7 should hold different tokens" in str(picture)

    def test_a_count_that_does_not_agree_with_the_tables_is_red(self):
        right = copy_on_write(self.BEFORE, self.AFTER, block_size=4, ref_counts=({3: 2, 7: 2}, {3: 2, 7: 1, 9: 1}))
        wrong = copy_on_write(self.BEFORE, self.AFTER, block_size=4, ref_counts=({3: 2, 7: 2}, {3: 2, 7: 2, 9: 1}))
        assert share_of(RED, right) == 0 < share_of(RED, wrong)
        assert "2 ≠ 1" in texts(wrong)
        assert "block 7 is counted 2 times and stands in tables 1 times" in str(wrong)

    def test_long_tables_show_their_ends_and_the_copy(self):
        tokens = [f"t{i}" for i in range(4 * 40)]
        before = ({"A": range(40), "B": range(40)}, {"A": tokens, "B": tokens})
        after = ({"A": range(40), "B": [*range(39), 50]}, {"A": tokens, "B": tokens})
        picture = copy_on_write(before, after, block_size=4)
        assert {"logical blocks from 35 on", "copy"} <= set(texts(picture))
        assert is_on_the_page(picture)
        assert picture.get_size_inches()[1] < 6

    def test_other_sequences_after_than_before_are_refused(self):
        with pytest.raises(ValueError, match="before there are A, B, after A: give the same"):
            copy_on_write(self.BEFORE, ({"A": [3, 7]}, {"A": SENTENCE}), block_size=4)


def chained(tokens: list[str], block_size: int = 4, chain: bool = True) -> list[bytes]:
    """Keys of the full blocks; without the chain, of each block's tokens alone."""
    keys: list[bytes] = []
    for i in range(len(tokens) // block_size):
        ids = [sum(map(ord, token)) for token in tokens[i * block_size : (i + 1) * block_size]]
        keys.append(hash_block(keys[-1] if keys and chain else None, ids))
    return keys


def chains(prompts: dict[str, list[str]], chain: bool = True):
    return hash_chains(prompts, {name: chained(tokens, chain=chain) for name, tokens in prompts.items()}, block_size=4)


CAT = ["You", " are", " a", " bot", " What", " is", " a", " cat", " Say", " it", " now", ".", "!"]
DOG = [*CAT[:7], " dog", *CAT[8:12]]


class TestHashChains:
    def test_says_what_is_shared_and_where_prompts_part(self):
        says = str(chains({"one": CAT, "two": DOG}))
        assert says == (
            "2 prompts in blocks of 4 tokens; one: 3 full blocks and 1 token without a key; two: 3 full blocks; "
            "one and two share 1 block and part at token 8, in block 1 (“ cat”, “ dog”); "
            "two, block 2: same tokens as one, and another key."
        )

    def test_shared_blocks_are_drawn_once_and_counted(self):
        picture = chains({"one": CAT, "two": DOG})
        written = texts(picture)
        assert written.count("You are a bot") == 1
        assert "× 2" in written
        assert written.count(chained(CAT)[0].hex()[:6]) == 1

    def test_the_tokens_at_which_they_part_are_red(self):
        picture = chains({"one": CAT, "two": DOG})
        assert {"cat", "dog"} <= set(texts(picture))
        assert share_of(RED, picture) > 0.002
        assert share_of(RED, chains({"one": CAT})) == 0

    def test_the_last_block_has_no_key_as_long_as_it_is_not_full(self):
        assert "no key: 1 of 4" in texts(chains({"one": CAT}))
        assert not any("no key" in text for text in texts(chains({"two": DOG})))

    def test_equal_tokens_after_another_past_have_another_key(self):
        assert "same tokens, other key" in texts(chains({"one": CAT, "two": DOG}))

    def test_a_key_without_its_past_is_told_as_a_mistake(self):
        picture = chains({"one": CAT, "two": DOG}, chain=False)
        assert texts(picture).count("same key, other past") == 2
        assert "two, block 2: same key as one, block 2, with another past" in str(picture)

    def test_the_same_prompt_under_another_salt_shares_nothing(self):
        tokens = DOG
        keys = {"a": chained(tokens), "b": [key[::-1] for key in chained(tokens)]}
        picture = hash_chains({"a": tokens, "b": tokens}, keys, block_size=4)
        assert "a and b share 0 blocks" in str(picture)
        assert texts(picture).count("You are a bot") == 2

    def test_prompts_that_share_stand_together_whatever_their_order(self):
        picture = chains({"one": CAT, "other": ["x"] * 8, "two": DOG})
        assert "one and two share 1 block" in str(picture)
        assert texts(picture).count("You are a bot") == 1

    def test_many_blocks_that_all_share_are_folded(self):
        system = [f" w{i}" for i in range(40)]
        picture = chains({"one": system + CAT, "two": system + DOG})
        assert "9 more" in texts(picture)
        assert "one and two share 11 blocks" in str(picture)
        assert "dog" in texts(picture)

    def test_where_prompts_part_is_drawn_however_long_they_are(self):
        system = [f" w{i}" for i in range(40)]
        picture = chains({"one": system + CAT * 9, "two": system + DOG * 9, "three": [*system[:20], *CAT * 9]})
        assert {"cat", "dog", "You"} <= set(texts(picture))
        assert is_on_the_page(picture)

    def test_prompts_that_part_among_the_blocks_left_out_are_not_drawn_as_one(self):
        base = [str(i) for i in range(80)]
        prompts = {str(i): base[: 8 * i] + ["x"] * (80 - 8 * i) for i in range(1, 9)}
        picture = chains(prompts)
        assert texts(picture).count("blocks") > 1
        assert is_on_the_page(picture)

    def test_many_prompts_are_counted_and_left_out(self):
        picture = chains({str(i): [f"{i}{j}" for j in range(4)] for i in range(11)})
        assert "3 more prompts are left out" in texts(picture)

    def test_keys_may_be_bytes_numbers_or_texts(self):
        prompts = {"a": list("abcd"), "b": list("efgh"), "c": list("ijkl")}
        picture = hash_chains(prompts, {"a": [b"\x01\x02"], "b": [-5], "c": ["key-of-c"]}, block_size=4)
        assert {"0102", "fffffb", "key-of"} <= set(texts(picture))

    def test_long_and_strange_tokens_stay_on_the_page(self):
        tokens = ["Donaudampfschifffahrtsgesellschaft" * 3, "\n", "$x$", "日本", "", " ", "😀" * 30, "end"] * 6
        picture = chains({"name " * 30: tokens, "b": tokens[:5]})
        assert is_on_the_page(picture)
        picture.png()

    def test_more_rows_share_more_of_the_first_colour(self):
        alone = share_of(ORANGE, chains({"one": DOG, "two": DOG}))
        apart = share_of(ORANGE, chains({"one": DOG, "two": ["x"] * 12}))
        assert alone == 0 < apart

    @pytest.mark.parametrize(
        ("prompts", "keys", "message"),
        [
            ({}, {}, "no prompt to draw"),
            ({"a": []}, {"a": []}, "no prompt to draw"),
            ({"a": "text"}, {"a": [b"1"]}, "a must be a list with one text a token"),
            ({"a": ["x"] * 5}, {"a": [b"1", b"2"]}, "a has 5 tokens, 1 full blocks of 4, and 2 keys"),
            ({"a": ["x"] * 5}, {}, "and 0 keys"),
        ],
    )
    def test_what_can_not_be_drawn_is_refused_in_words(self, prompts, keys, message):
        with pytest.raises(ValueError, match=message):
            hash_chains(prompts, keys, block_size=4)


class TestText:
    def test_what_fits_is_left_alone(self):
        assert clip("short", 2, 9) == "short"

    def test_what_does_not_fit_ends_in_an_ellipsis_and_fits_then(self):
        clipped = clip("a rather long piece of text", 0.6, 9)
        assert clipped.endswith("…")
        assert text_width(clipped, 9) <= 0.6

    def test_where_nothing_fits_nothing_is_written(self):
        assert clip("text", 0.01, 9) == ""

    def test_line_ends_and_characters_without_shape_are_shown(self):
        assert printable("a\nb\tc日") == "a↵b⇥c□"

    def test_spaces_at_the_end_count(self):
        assert text_width("a  ", 9) > text_width("a", 9)
