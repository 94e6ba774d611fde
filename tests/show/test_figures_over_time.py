"""Pictures of an engine at work: memory, footprint, schedule, latency, hit rate. What is drawn is what was given."""

import matplotlib.patches
import numpy as np
import pytest
from looking import is_on_the_page, share_of, texts
from reports import output, step

from pagedkv_lab.engine import ContiguousEngine, Engine, SamplingParams, load_model
from pagedkv_lab.show.figures import (
    footprint_over_time,
    hit_rate_by_capacity,
    latency_distributions,
    memory_over_time,
    schedule_gantt,
)
from pagedkv_lab.show.style import BLUE, GREEN, ORANGE, RED

MiB = 1 << 20


def bars(picture, colour: str) -> list[tuple[float, float, float]]:
    """(row, from, to) of the bars of one colour that have a width."""
    found = []
    for patch in picture.findobj(matplotlib.patches.Rectangle):
        if patch.get_facecolor() == matplotlib.colors.to_rgba(colour) and patch.get_width() > 0 and patch.axes:
            row = patch.get_y() + patch.get_height() / 2
            if row >= 0:
                found.append((round(row, 2), patch.get_x(), patch.get_x() + patch.get_width()))
    return sorted(found)


SERIES = {"filled": [0, MiB, 3 * MiB], "weights": [8 * MiB] * 3, "free": [4 * MiB, 3 * MiB, MiB]}


def dotted(picture) -> list[tuple[int, float, float]]:
    """(row, from, to) of the lines of those who wait."""
    lines = [line.get_xydata() for line in picture.axes[0].lines if line.get_linestyle() == ":"]
    return [(points[0, 1], points[0, 0], points[1, 0]) for points in lines if len(points)]


def crosses(picture) -> list[tuple[int, float]]:
    """(row, where) of the crosses of those who were preempted."""
    lines = [line.get_xydata() for line in picture.axes[0].lines if line.get_marker() == "X"]
    return [(points[0, 1], points[0, 0]) for points in lines if len(points)]


class TestMemoryOverTime:
    def test_says_each_kind_in_the_order_of_the_stack_and_where_it_is_most(self):
        assert str(memory_over_time(SERIES, capacity_bytes=16 * MiB)) == (
            "Memory over 3 steps: weights 8 MiB; filled 0 B to 3 MiB, most at step 3; free 1 MiB to 4 MiB, most at "
            "step 1; the memory ends at 16 MiB."
        )

    def test_areas_lie_on_top_of_each_other(self):
        picture = memory_over_time(SERIES)
        weights, filled, free = (a.get_data() for a in picture.axes[0].findobj(matplotlib.patches.StepPatch))
        assert list(weights.values) == [8, 8, 8]
        assert list(filled.baseline) == [8, 8, 8]
        assert list(filled.values) == list(free.baseline) == [8, 9, 11]
        assert list(free.values) == [12, 12, 12]
        assert picture.axes[0].get_ylabel() == "MiB"

    def test_larger_memory_takes_more_of_the_picture(self):
        little, much = (memory_over_time({"weights": [1e9], "filled": [size]}) for size in (1e8, 3e9))
        assert share_of(ORANGE, little) < share_of(BLUE, little)
        assert share_of(ORANGE, much) > share_of(BLUE, much)

    def test_a_number_holds_until_the_next_one(self):
        picture = memory_over_time({"filled": [1, 2, 3]}, x=[0, 1, 4], xlabel="seconds")
        (area,) = picture.axes[0].findobj(matplotlib.patches.StepPatch)
        assert list(area.get_data().edges) == [0, 1, 4, 6]  # the last one as long as is usual, 2
        assert "most at seconds 4" in str(picture)

    def test_one_number_is_a_picture_too(self):
        assert str(memory_over_time({"filled": [MiB]})) == "Memory over time: filled 1 MiB."

    def test_memory_that_is_all_zero_is_a_picture_too(self):
        assert "filled 0 B" in str(memory_over_time({"filled": [0, 0]}))

    @pytest.mark.parametrize(
        ("series", "x", "message"),
        [
            ({}, None, "at least one kind"),
            ({"filled": []}, None, "at least one number"),
            ({"magic": [1]}, None, 'magic; choose from "weights"'),
            ({"filled": [1, 2], "free": [1]}, None, "different numbers"),
            ({"filled": [1, -2]}, None, "filled: -2 is no amount"),
            ({"filled": [1, float("inf")]}, None, "filled: inf is no amount"),
            ({"filled": [1, 2]}, [1], "2 numbers a kind, and 1 values of x"),
            ({"filled": [1, 2]}, [2, 2], "x must ascend"),
        ],
    )
    def test_what_can_not_be_drawn_is_refused_in_words(self, series, x, message):
        with pytest.raises(ValueError, match=message):
            memory_over_time(series, x)


class TestFootprintOverTime:
    def test_says_the_peak_and_how_much_of_it_was_filled(self):
        runs = {"contiguous": ([64, 128, 64], [5, 12, 9]), "paged": ([8, 16], [5, 12])}
        assert str(footprint_over_time(runs)) == (
            "contiguous reserves at most 128 slots (step 2 of 3) and fills 9.4% of them then; "
            "paged reserves at most 16 slots (step 2 of 2) and fills 75.0% of them then."
        )

    def test_runs_stand_side_by_side_to_the_same_scale(self):
        left, right = footprint_over_time({"a": ([64, 128], [1, 2]), "b": ([8], [2])}).axes
        assert left.get_ylim() == right.get_ylim()
        assert left.get_xlim() == right.get_xlim() == (1, 3)
        assert "peak 8 slots, 25.0% filled" in [text.get_text() for text in right.texts]

    def test_real_engines_on_the_same_requests(self):
        model = load_model("toy")
        runs = {}
        for name, engine in (
            ("contiguous", ContiguousEngine(model, max_model_len=64, num_gpu_blocks=4)),
            ("paged", Engine(model, max_model_len=64, block_size=4, num_gpu_blocks=64)),
        ):
            for start in (5, 50, 90):
                engine.add_request(
                    range(start, start + 9), SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
                )
            reports = []
            while engine.has_unfinished_requests():
                reports.append(engine.step())
            runs[name] = [r.pool.used * engine.block_size for r in reports], [r.used_slots for r in reports]
        says = str(footprint_over_time(runs))
        assert "contiguous reserves at most 192 slots" in says
        assert "paged reserves at most 48 slots" in says

    @pytest.mark.parametrize(
        ("runs", "message"),
        [
            ({}, "no run to draw"),
            ({"a": ([], [])}, "a: 0 numbers"),
            ({"a": ([1, 2], [1])}, "a: 2 numbers of slots reserved and 1 of slots filled"),
            ({"a": ([4, 4], [4, 5])}, "a: at step 2, 5 slots are filled and 4 reserved"),
        ],
    )
    def test_what_can_not_be_drawn_is_refused_in_words(self, runs, message):
        with pytest.raises(ValueError, match=message):
            footprint_over_time(runs)


REPORTS = [
    step(1, [(1, 0, 32, "prefill")]),
    step(2, [(1, 0, 8, "prefill"), (2, 0, 5, "prefill")]),
    step(3, [(1, 0, 1, "decode"), (2, 0, 1, "decode")]),
    step(4, [(1, 0, 1, "decode")], preempted=[2]),
    step(5, [(1, 0, 1, "decode")], finished=[1]),
    step(6, [(2, 0, 6, "prefill")]),
    step(7, [(2, 0, 1, "decode")], finished=[2]),
]


class TestScheduleGantt:
    def test_says_who_ran_how_often(self):
        assert str(schedule_gantt(REPORTS)) == (
            "7 steps, 0.07 s: 2 requests, 2 finished, 1 preemption. "
            "request 1: prefill 40 tokens in 2 chunks, 3 decode steps; "
            "request 2: prefill 11 tokens in 2 chunks, 2 decode steps, preempted 1 time."
        )

    def test_prefill_chunks_are_bars_of_one_step_with_their_tokens(self):
        picture = schedule_gantt(REPORTS)
        found = [(row, round(left + 0.5), round(right + 0.4)) for row, left, right in bars(picture, BLUE)]
        assert found == [(0, 1, 2), (0, 2, 3), (1, 2, 3), (1, 6, 7)]
        assert {"32", "8", "5", "6"} <= set(texts(picture))

    def test_decode_is_one_bar_as_long_as_it_goes_on(self):
        found = bars(schedule_gantt(REPORTS), GREEN)
        assert found == [(0, 2.5, 5.5), (1, 2.5, 3.5), (1, 6.5, 7.5)]

    def test_a_request_waits_until_it_runs_and_while_it_is_preempted(self):
        assert dotted(schedule_gantt(REPORTS)) == [(1, 0.5, 1.5), (1, 3.5, 5.5)]

    def test_a_cross_is_where_blocks_were_lost(self):
        assert crosses(schedule_gantt(REPORTS)) == [(1, 3.5)]

    def test_a_request_waits_from_its_arrival_on(self):
        picture = schedule_gantt(REPORTS, arrivals={1: 1, 2: 2, 3: 6})
        assert dotted(picture) == [(1, 3.5, 5.5), (2, 5.5, 7.5)]  # the third request never ran
        assert "3 requests, 2 finished" in str(picture)

    def test_in_seconds_a_step_is_as_wide_as_it_took_and_has_a_bar_of_its_own(self):
        reports = [
            step(1, [(1, 0, 9, "prefill")], seconds=0.5),
            step(2, [(1, 0, 1, "decode")], seconds=0.25),
            step(3, [(1, 0, 1, "decode")], seconds=1.0),
        ]
        (_, first, end_of_first), (_, second, end_of_second) = bars(schedule_gantt(reports, x="seconds"), GREEN)
        assert (first, second) == (0.5, 0.75)
        assert 0.7 < end_of_first < 0.75
        assert 1.7 < end_of_second < 1.75

    def test_each_output_of_a_request_has_its_row(self):
        reports = [
            step(1, [(1, 0, 4, "prefill")]),
            step(2, [(1, 0, 1, "decode"), (1, 1, 1, "decode")]),
            step(3, [(1, 1, 1, "decode")], finished=[1]),
        ]
        picture = schedule_gantt(reports)
        assert [label.get_text() for label in picture.axes[0].get_yticklabels()] == ["1 · 0", "1 · 1"]
        assert bars(picture, GREEN) == [(0, 1.5, 2.5), (1, 1.5, 3.5)]

    def test_more_than_32_rows_are_counted_and_left_out(self):
        reports = [step(1, [(i, 0, 1, "prefill") for i in range(1, 41)])]
        picture = schedule_gantt(reports)
        assert len(picture.axes[0].get_yticklabels()) == 32
        assert any("8 more rows are left out" in text for text in texts(picture))
        assert "40 requests" in str(picture)

    def test_a_real_engine_that_preempts(self):
        engine = Engine(load_model("toy"), block_size=4, num_gpu_blocks=12, max_model_len=64, max_num_batched_tokens=16)
        for start in (5, 40, 80):
            engine.add_request(range(start, start + 12), SamplingParams(max_tokens=20, temperature=0, ignore_eos=True))
        reports = []
        while engine.has_unfinished_requests():
            reports.append(engine.step())
        assert engine.stats().preemptions > 0
        picture = schedule_gantt(reports)
        assert f"3 requests, 3 finished, {engine.stats().preemptions} preemption" in str(picture)
        assert len(crosses(picture)) == engine.stats().preemptions
        assert is_on_the_page(picture)

    def test_no_steps_are_refused(self):
        with pytest.raises(ValueError, match="no steps to draw"):
            schedule_gantt([])

    def test_another_x_is_refused(self):
        with pytest.raises(ValueError, match='"steps" or "seconds", not \'tokens\''):
            schedule_gantt(REPORTS, x="tokens")


class TestLatencyDistributions:
    def test_says_quantiles_that_are_samples(self):
        ttft = [i / 1000 for i in range(1, 101)]
        assert str(latency_distributions({"paged": (ttft, [0.002] * 10)})) == (
            "paged: TTFT of 100, p50 50 ms, p90 90 ms, p99 99 ms; TPOT of 10, p50 2 ms, p90 2 ms, max 2 ms."
        )

    def test_a_quantile_that_the_samples_do_not_support_is_not_named(self):
        says = str(latency_distributions({"few": ([0.1, 0.3, 0.2], [0.01])}))
        assert says == "few: TTFT of 3, p50 200 ms, max 300 ms; TPOT of 1, 1 sample 10 ms."

    def test_request_outputs_are_read_and_missing_times_left_out(self):
        outputs = [output(1, 2.0, 0.01), output(2, 1.0, None)]
        says = str(latency_distributions({"a": outputs}))
        assert says == "a: TTFT of 2, p50 1 s, max 2 s; TPOT of 1, 1 sample 10 ms."

    def test_one_request_without_a_second_token(self):
        picture = latency_distributions({"a": [output(1, 2.0, None)]})
        assert "no such token" in texts(picture)
        assert str(picture) == "a: TTFT of 1, 1 sample 2 s; TPOT of no request."

    def test_there_is_a_dot_for_each_request(self):
        picture = latency_distributions({"a": ([0.1, 0.2, 0.4], [0.01, 0.02]), "b": ([0.3], [0.05])})
        left, right = picture.axes
        assert [len(dots.get_offsets()) for dots in left.collections] == [3, 1]
        assert [len(dots.get_offsets()) for dots in right.collections] == [2, 1]
        np.testing.assert_allclose(left.collections[0].get_offsets()[:, 0], [100, 200, 400])

    def test_thousands_of_samples_and_several_engines_stay_on_the_page(self):
        samples = np.random.default_rng(0).lognormal(-2, 0.8, 5000)
        picture = latency_distributions({f"engine number {i} of several": (samples, samples) for i in range(6)})
        assert is_on_the_page(picture)
        assert "of 5,000, p50" in str(picture)

    @pytest.mark.parametrize(
        ("engines", "message"),
        [
            ({}, "no latencies to draw"),
            ({"a": []}, "a: no request has a first token"),
            ({"a": ([None], [])}, "a: no request has a first token"),
            ({"a": [0.1, 0.2]}, "a: give request outputs, or a pair"),
            ({"a": ([-1.0], [])}, "a: -1.0 is no time"),
        ],
    )
    def test_what_can_not_be_drawn_is_refused_in_words(self, engines, message):
        with pytest.raises(ValueError, match=message):
            latency_distributions(engines)


class TestHitRateByCapacity:
    def test_says_every_point_and_the_bound(self):
        picture = hit_rate_by_capacity({"LRU": {10_000: 0.211, 1000: 0.045}, "FIFO": {1000: 0.04}}, no_limit=0.366)
        assert str(picture) == (
            "Hit rate by capacity in blocks: LRU 4.5% at 1,000, 21.1% at 10,000; FIFO 4.0% at 1,000; no limit 36.6%."
        )
        assert "no limit: 36.6%" in texts(picture)

    def test_points_are_in_order_on_a_logarithmic_axis_and_marked_apart(self):
        axes = hit_rate_by_capacity({"a": {100: 0.2, 10: 0.1}, "b": {10: 0.05, 100: 0.1}}).axes[0]
        first, second = axes.lines
        assert list(first.get_xdata()) == [10, 100]
        assert axes.get_xscale() == "log"
        assert first.get_marker() != second.get_marker()

    def test_a_single_line_has_its_numbers_at_its_points(self):
        assert {"4.5%", "21.1%"} <= set(texts(hit_rate_by_capacity({"LRU": {1000: 0.045, 10_000: 0.211}})))

    def test_a_single_point_and_a_rate_of_nothing(self):
        assert "LRU 0.0% at 16" in str(hit_rate_by_capacity({"LRU": {16: 0.0}}))

    @pytest.mark.parametrize(
        ("lines", "no_limit", "message"),
        [
            ({}, None, "no hit rates to draw"),
            ({"LRU": {}}, None, "no hit rates to draw"),
            ({"LRU": {10: 36.6}}, None, "LRU: a rate is from 0 to 1"),
            ({"LRU": {0: 0.5}}, None, "a capacity at least 1"),
            ({"LRU": {10: 0.5}}, 1.5, "no_limit: a rate is from 0 to 1"),
            ({str(i): {10: 0.5} for i in range(8)}, None, "8 lines can't be told apart"),
        ],
    )
    def test_what_can_not_be_drawn_is_refused_in_words(self, lines, no_limit, message):
        with pytest.raises(ValueError, match=message):
            hit_rate_by_capacity(lines, no_limit)


def test_names_with_dollars_are_names_and_no_formulas():
    for picture in (
        latency_distributions({"5$ and 6$": ([1.0], [1.0])}),
        hit_rate_by_capacity({"5$ and 6$": {10: 0.5}}),
        footprint_over_time({"5$ and 6$": ([4], [2])}),
    ):
        assert any(r"5\$ and 6\$" in text for text in texts(picture))
        picture.png()


def test_red_marks_only_what_went_wrong():
    calm = [step(1, [(1, 0, 4, "prefill")]), step(2, [(1, 0, 1, "decode")], finished=[1])]
    assert share_of(RED, schedule_gantt(calm)) < share_of(RED, schedule_gantt(REPORTS))
