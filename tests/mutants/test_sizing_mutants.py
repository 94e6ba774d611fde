"""The smallest example comes first: what a check of a function shows is the first case that goes wrong."""

from pagedkv_lab.course.checks import examine


def test_the_smallest_example_comes_first():
    report = examine("kv_bytes_per_token", lambda L, h, d, b: L * h * d * b)
    assert report.diagnosis.call == ("kv_bytes_per_token(num_layers=1, num_kv_heads=1, head_dim=1, bytes_per_number=1)")
    assert (report.diagnosis.expected, report.diagnosis.got) == ("2", "1")
