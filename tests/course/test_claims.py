"""A claim's verdict follows from its measurement, and every form of it says the same."""

import pytest

from pagedkv_lab.course.claims import Claim, Claims


@pytest.mark.parametrize(
    ("holds", "condition", "verdict"),
    [
        (True, "", "holds"),
        (True, "for MHA", "holds with a condition"),
        (False, "", "does not hold"),
        (False, "for MHA", "does not hold"),
    ],
)
def test_the_verdict_follows_from_measurement_and_condition(holds, condition, verdict):
    claim = Claim("§1", "says", "measured", holds, condition)
    assert claim.verdict == verdict
    assert f"{verdict}" in repr(claim)
    assert f"{verdict}<" in claim._repr_html_()


def test_a_condition_is_shown_where_the_claim_holds_and_nowhere_else():
    assert "for MHA" in repr(Claim("§1", "a", "b", True, "for MHA"))
    assert "for MHA" in Claim("§1", "a", "b", True, "for MHA")._repr_html_()
    assert "for MHA" not in repr(Claim("§1", "a", "b", False, "for MHA"))
    assert "for MHA" not in Claim("§1", "a", "b", False, "for MHA")._repr_html_()


def test_what_is_shown_as_html_is_escaped():
    shown = Claim("§1", "x < y & z", "<b>", True, "a < b", "c > d")._repr_html_()
    assert "x &lt; y &amp; z" in shown
    assert "<b>" not in shown
    assert "a &lt; b" in shown
    assert "c &gt; d" in shown


def test_code_in_backticks_is_code_as_html_and_stays_as_it_is_in_plain_text():
    claims = Claims()
    claim = claims.check(
        "§1", "`a<b>` is set", measured="`one` is `two`", holds=True, condition="with `c`", why="see `d`"
    )
    for shown, codes in (
        (claim._repr_html_(), ("a&lt;b&gt;", "one", "two", "c", "d")),
        (claims._repr_html_(), ("a&lt;b&gt;",)),
    ):
        assert "`" not in shown
        for code in codes:
            assert f">{code}</code>" in shown
    for shown in (repr(claim), repr(claims)):
        assert "`a<b>` is set" in shown
        assert "<code" not in shown


def test_checking_a_claim_again_replaces_it_and_keeps_its_place():
    claims = Claims()
    claims.check("§1", "first", measured="1", holds=True)
    claims.check("§2", "second", measured="2", holds=True)
    claims.check("§1", "first", measured="3", holds=False)
    assert [(claim.says, claim.measured, claim.verdict) for claim in claims] == [
        ("first", "3", "does not hold"),
        ("second", "2", "holds"),
    ]


def test_the_table_lists_each_claim_and_counts_the_verdicts():
    claims = Claims()
    claims.check("§1", "first", measured="one", holds=True)
    claims.check("§2", "second", measured="two", holds=True, condition="if")
    claims.check("§3", "third", measured="three", holds=False)
    claims.check("§4", "fourth", measured="four", holds=False)
    for shown in (repr(claims), claims._repr_html_()):
        for word in ("first", "second", "third", "fourth", "one", "two", "three", "four"):
            assert word in shown
        assert "✓ holds: 1 · ◐ holds with a condition: 1 · ✗ does not hold: 2" in shown
