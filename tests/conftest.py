"""What all tests share: no hub, no window, nobody's progress, one thread, the same examples in every run."""

import os
import signal
import sys

import pytest
from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["MPLBACKEND"] = "Agg"
# Triton's kernels run in its interpreter, on the CPU; it must know before it is imported.
os.environ["TRITON_INTERPRET"] = "1"

# A shell that starts the tests in the background has Ctrl-C ignored in them and in all that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# HYPOTHESIS_PROFILE=explore looks at fresh examples, and more of them.
settings.register_profile("same-every-time", derandomize=True, deadline=None, database=None)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same-every-time"))


@pytest.fixture(autouse=True)
def _own_progress(tmp_path_factory, monkeypatch):
    """A test's passes are not the learner's."""
    monkeypatch.setenv("PAGEDKV_HOME", str(tmp_path_factory.mktemp("pagedkv-home")))


@pytest.fixture(autouse=True)
def _one_thread():
    """Tiny tensors are slower on several threads, and other tests run beside these. Imports no torch for it."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
