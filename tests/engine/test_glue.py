"""The norm and the gate between a Llama's products: the numbers of the formulas, with numba and without."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from pagedkv_lab.engine import glue

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-8}  # bfloat16 rounds to 8 bits


@pytest.fixture(params=["numba", "torch"], autouse=True)
def implementation(request, monkeypatch):
    if request.param == "numba" and not glue.HAS_NUMBA:
        pytest.skip("numba is not installed: torch's operators are all there is")
    monkeypatch.setattr(glue, "HAS_NUMBA", request.param == "numba")


@pytest.fixture(params=[1, 2])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def numbers(*shape: int, dtype: torch.dtype, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.randn(*shape, generator=generator) * scale).to(dtype)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("rows", "width"), [(1, 576), (3, 7), (16, 576), (200, 512), (0, 8), (5, 1)])
def test_a_norm_divides_each_row_by_its_root_mean_square(rows, width, dtype):
    x, weight = numbers(rows, width, dtype=dtype, scale=3.0), numbers(width, dtype=dtype)
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    got = glue.rms_norm(x, weight, 1e-5)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), exact, rtol=2 * TOLERANCE[dtype], atol=1e-6)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("rows", "width"), [(1, 1536), (3, 7), (16, 1536), (40, 1000), (0, 8), (5, 1)])
def test_a_gate_is_silu_of_the_first_half_times_the_second(rows, width, dtype):
    gate_up = numbers(rows, 2 * width, dtype=dtype, scale=4.0)
    gate, up = gate_up.double().chunk(2, dim=-1)
    got = glue.silu_times(gate_up)
    assert got.dtype == dtype
    tolerance = 3 * TOLERANCE[dtype]  # torch rounds silu to bfloat16 before it multiplies
    torch.testing.assert_close(got.double(), gate * gate.sigmoid() * up, rtol=tolerance, atol=1e-6)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_gate_far_from_zero_is_shut_or_open_and_never_no_number(dtype):
    gates = torch.tensor([-1e6, -1e4, -130.0, -90.0, 0.0, 90.0, 1e4, 1e38])
    got = glue.silu_times(torch.cat([gates, torch.full_like(gates, 2.0)])[None].to(dtype))[0].double()
    assert got.isfinite().all()
    assert got[:4].abs().max() < 1e-30
    torch.testing.assert_close(got[4:], 2.0 * gates[4:].to(dtype).double(), rtol=TOLERANCE[dtype], atol=0.0)


def test_a_row_of_zeros_stays_zero():
    assert glue.rms_norm(torch.zeros(2, 9), torch.ones(9), 1e-5).abs().max() == 0


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_no_number_shows_in_its_own_row_only(dtype):
    x = numbers(4, 8, dtype=dtype)
    x[2, 3] = float("nan")
    for got in (glue.rms_norm(x, torch.ones(8, dtype=dtype), 1e-5), glue.silu_times(x)):
        assert got[[0, 1, 3]].isfinite().all()
        assert got[2].isnan().any()


@pytest.mark.usefixtures("threads")
def test_engines_in_several_threads_do_not_get_each_other_s_numbers():
    inputs = [numbers(40 + i, 1024, dtype=torch.float32) for i in range(4)]
    expected = [glue.silu_times(x) for x in inputs]

    def many_times(i: int) -> bool:
        return all(torch.equal(glue.silu_times(inputs[i]), expected[i]) for _ in range(200))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(many_times, range(4)))
