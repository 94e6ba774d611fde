"""A report says what both sides did, and what it claims."""

from pagedkv_lab.measure.records import FLAWS, BenchmarkReport, Side

BEFORE = Side((20, 30), (8, 8), 1, 0, 1, (4.0, 4.5, 4.25), 4.25, 16)
AFTER = Side((20, 30), (8, 8), 2, 0, 1, (2.0, 2.5, 2.125), 2.0, 16)


def test_the_claim_is_computed_from_what_the_report_counts():
    report = BenchmarkReport(BEFORE, AFTER)
    assert report.before.tokens_per_second == 16 / 4.25
    assert report.speedup == 4.25 / 2.0


def test_both_sides_stand_side_by_side():
    lines = str(BenchmarkReport(BEFORE, AFTER)).splitlines()
    assert lines[0].split() == ["before", "after"]
    assert [line.split()[0] for line in lines[1:-1]] == list(vars(BEFORE))
    assert "4.0, 4.5, 4.25" in lines[6]
    assert lines[-1].split() == ["tokens", "a", "second", "3.8", "8.0,", "2.1", "times", "as", "many"]


def test_every_flaw_is_explained_in_a_sentence():
    assert all(text.endswith(".") and ": " not in name for name, text in FLAWS.items())
