"""Numbers in 8 and 4 bits: how far what comes back may be off, and how two of them share a byte."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from pagedkv_lab.kv.quantize import GROUP_DIM, dequantize, pack, quantize, unpack

#: What float16 rounds by: half a unit in the last place, and half of its smallest number.
HALF_ULP, HALF_TINIEST = 2.0**-11, 2.0**-25
KINDS = [(bits, axis) for bits in (8, 4) for axis in ("token", "channel")]


@st.composite
def numbers(draw):
    """(blocks, tokens, heads, D) of any scale, and groups with an offset or an outlier, as keys have them."""
    shape = [draw(st.integers(1, limit)) for limit in (2, 5, 2)] + [2 * draw(st.integers(1, 5))]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    x = torch.randn(shape, generator=generator) * 10.0 ** draw(st.integers(-9, 2))
    x += draw(st.sampled_from([0.0, 1.0, -30.0]))
    if draw(st.booleans()):
        x[..., 0] *= 100
    return x.to(draw(st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16])))


def error_bound(x, bits, axis):
    """Half a step, and what float16 adds at the ends of a group, where the numbers are held to 127 or 15 steps."""
    x, dim = x.double(), GROUP_DIM[axis]
    low, high = x.amin(dim, keepdim=True), x.amax(dim, keepdim=True)
    if bits == 8:
        largest = torch.maximum(high.abs(), low.abs())
        half_a_step, at_the_ends = largest / 127 / 2, largest * HALF_ULP + 127 * HALF_TINIEST
    else:
        half_a_step = (high - low) / 15 / 2
        at_the_ends = (high - low + low.abs()) * HALF_ULP + 16 * HALF_TINIEST
    float32 = 1e-6 * (high.abs() + low.abs())
    return half_a_step * (1 + 2 * HALF_ULP) + at_the_ends + float32


@pytest.mark.parametrize(("bits", "axis"), KINDS)
@given(x=numbers())
@example(x=torch.zeros(1, 3, 2, 4))
@example(x=torch.full((1, 3, 2, 4), 7.125))
@example(x=torch.tensor([1e-9, -1e-9, 3e-8, 0.0]).view(1, 1, 1, 4))
@example(x=torch.tensor([1e-9, -1.06e-5, 3e-8, 0.0]).view(1, 1, 1, 4))  # a step that float16 rounds by 40 %
def test_what_comes_back_is_off_by_half_a_step_and_float16s_rounding_at_most(bits, axis, x):
    back = dequantize(quantize(x, bits, axis), axis, torch.float64)
    assert quantize(x, 8, axis).data.min() >= -127
    error, bound = (back - x.double()).abs(), error_bound(x, bits, axis)
    assert (error <= bound).all(), f"off by {(error / bound).max():.2f} times what is allowed"


@pytest.mark.parametrize(("bits", "axis"), KINDS)
def test_the_bound_is_not_a_loose_one(bits, axis):
    x = torch.randn(20, 16, 2, 32, generator=torch.Generator().manual_seed(0))
    error = (dequantize(quantize(x, bits, axis), axis, torch.float64) - x).abs()
    assert (error / error_bound(x, bits, axis)).max() > 0.85


def test_a_scale_by_token_is_one_for_each_token_and_head_and_by_channel_one_for_each_channel_of_a_block():
    x = torch.randn(3, 5, 2, 8)
    assert quantize(x, 8, "token").scale.shape == (3, 5, 2)
    assert quantize(x, 8, "channel").scale.shape == (3, 2, 8)
    assert quantize(x, 8, "token").zero is None
    by_channel = quantize(x, 4, "channel")
    assert by_channel.zero.shape == by_channel.scale.shape == (3, 2, 8)
    assert by_channel.data.shape == (3, 5, 2, 4)


@pytest.mark.parametrize(("bits", "axis"), KINDS)
def test_what_one_group_holds_is_nothing_to_the_others(bits, axis):
    x = torch.randn(2, 4, 3, 6, generator=torch.Generator().manual_seed(1))
    before = dequantize(quantize(x, bits, axis), axis)
    group = (1, 2, 1, slice(None)) if axis == "token" else (1, slice(None), 1, 4)
    changed = x.clone()
    changed[group] *= -50
    after = dequantize(quantize(changed, bits, axis), axis)
    differs = before != after
    assert differs[group].any()
    differs[group] = False
    assert not differs.any()


def test_eight_bits_lie_on_both_sides_of_zero_and_never_use_minus_128():
    data = quantize(torch.linspace(-3, 3, 1000).view(1, 1, 1, -1), 8, "token").data
    assert (data.min(), data.max()) == (-127, 127)
    assert quantize(torch.tensor([[[[-1270.0, 635.0]]]]), 8, "token").data.flatten().tolist() == [-127, 64]


def test_four_bits_begin_at_the_smallest_number():
    tensor = quantize(torch.arange(10.0, 26.0).view(1, 1, 1, 16), 4, "token")
    assert (tensor.zero.item(), tensor.scale.item()) == (10, 1)
    assert unpack(tensor.data).flatten().tolist() == list(range(16))


def test_four_bits_count_from_the_zero_as_float16_holds_it():
    """1000.2 is 1000 there. Counted from 1000.2, everybody would be off by 0.2 more."""
    x = 1000.2 + 10 * torch.rand(1, 1, 1, 512, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    tensor = quantize(x, 4, "token")
    assert tensor.zero.item() == 1000
    error = (dequantize(tensor, "token", torch.float64) - x).abs()
    assert error.max() <= tensor.scale.item() / 2 + 0.01


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("x", [0.0, 1e-12, -1e-12])
def test_where_the_scale_is_0_the_data_are_0(bits, x):
    tensor = quantize(torch.tensor([x, 0.0]).view(1, 1, 1, 2), bits, "token")
    assert tensor.scale.item() == 0
    assert not tensor.data.any()


@pytest.mark.parametrize(("bits", "axis"), KINDS)
def test_a_number_that_is_none_is_not_hidden_and_stays_in_its_group(bits, axis):
    x = torch.ones(1, 4, 1, 4)
    x[0, 1, 0, 2] = float("nan")
    back = dequantize(quantize(x, bits, axis), axis)
    group = (0, 1) if axis == "token" else (0, slice(None), 0, 2)
    assert back[group].isnan().all()
    assert back.isnan().sum() == 4


def test_numbers_too_large_for_a_float16_scale_make_nan_and_not_something_else():
    assert dequantize(quantize(torch.full((1, 1, 1, 2), 1e9), 8, "token"), "token").isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_what_comes_back_is_in_the_dtype_asked_for_and_rounded_once(dtype):
    tensor = quantize(torch.randn(2, 3, 1, 8, generator=torch.Generator().manual_seed(2)), 4, "channel")
    back = dequantize(tensor, "channel", dtype)
    assert back.dtype == dtype
    exact = dequantize(tensor, "channel", torch.float64)
    assert torch.equal(back, exact.float().to(dtype)) or dtype == torch.float64


@given(st.integers(1, 6), st.integers(0, 2**32))
def test_packed_numbers_come_back(half, seed):
    x = torch.randint(0, 16, (2, 3, 2 * half), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    packed = pack(x)
    assert packed.shape == (2, 3, half)
    assert packed.dtype == torch.uint8
    assert torch.equal(unpack(packed), x)


def test_byte_j_holds_number_j_below_and_number_j_plus_half_above():
    assert pack(torch.tensor([1, 2, 3, 10, 11, 12], dtype=torch.uint8)).tolist() == [0xA1, 0xB2, 0xC3]
