"""The package's own parts are right: each passes the check of the exercise in which it is rebuilt."""

import pytest

from pagedkv_lab import sizing
from pagedkv_lab.blocks import BlockAllocator, BlockTable, PrefixCache, hash_block
from pagedkv_lab.course import examine

OWN = {
    "kv_bytes_per_token": sizing.kv_bytes_per_token,
    "num_blocks_that_fit": sizing.num_blocks_that_fit,
    "BlockAllocator": BlockAllocator,
    "CachingAllocator": BlockAllocator,
    "BlockTable": BlockTable,
    "hash_block": hash_block,
    "PrefixCache": PrefixCache,
}


@pytest.mark.parametrize("exercise", OWN)
def test_the_package_s_own_part_passes_its_check(exercise):
    report = examine(exercise, OWN[exercise])
    assert report.passed, str(report)
