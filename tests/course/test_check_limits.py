"""A learner's function comes back in time, on the main thread and off it, and leaves no timer behind."""

import signal
import sys
import threading
import time

import pytest

from pagedkv_lab.course.checks.limits import MAX_PRINTED_CHARS, call_with_limit

# The limit takes the timer with which pytest-timeout would end a test that hangs; a thread still can.
pytestmark = pytest.mark.timeout(60, method="thread")


#: Not empty once these tests are over. What swallows everything can't be ended from outside, and as a thread that goes
#: on for ever it would slow down whatever tests run after these in the same process.
OVER: list[bool] = []


@pytest.fixture(scope="module", autouse=True)
def _nothing_goes_on_for_ever():
    yield
    OVER.append(True)


def loops():
    while not OVER:
        pass


def loops_and_prints():
    while not OVER:
        print("again")


def loops_and_swallows():
    while not OVER:
        try:
            loops()
        except BaseException as error:
            del error


def loops_and_swallows_every_step():
    while not OVER:
        try:  # noqa: SIM105
            len("")
        except:  # noqa: E722
            pass


def loops_and_swallows_in_one_line():
    while not OVER:
        try: loops()  # noqa: E701, SIM105
        except: pass  # noqa: E701, E722


def loops_and_counts_what_it_swallows():
    swallowed = 0
    while not OVER:
        try:
            while not OVER:
                swallowed += 1
        except BaseException:
            swallowed -= 1


def sleeps():
    time.sleep(1.5)


def on_main(function):
    return call_with_limit(function, seconds=0.2)


def off_main(function):
    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.append(call_with_limit(function, seconds=0.2)))
    thread.start()
    thread.join(30)
    return outcomes[0]


@pytest.mark.parametrize("where", [on_main, off_main])
@pytest.mark.parametrize(
    "function",
    [
        loops,
        loops_and_prints,
        loops_and_swallows,
        loops_and_swallows_every_step,
        loops_and_swallows_in_one_line,
        loops_and_counts_what_it_swallows,
        sleeps,
    ],
)
def test_what_never_returns_ends_as_timed_out(where, function):
    outcome = where(function)
    assert outcome.timed_out
    assert outcome.error is None
    assert len(outcome.printed) <= MAX_PRINTED_CHARS


@pytest.mark.parametrize("where", [on_main, off_main])
def test_values_errors_and_prints_come_back(where):
    assert where(lambda: print("hello") or 7).value == 7
    assert where(lambda: print("hello")).printed == "hello\n"
    assert isinstance(where(lambda: 1 / 0).error, ZeroDivisionError)
    assert isinstance(where(lambda: sys.exit(3)).error, SystemExit)


def test_a_timer_that_somebody_else_had_set_goes_on():
    rang = []
    old = signal.signal(signal.SIGALRM, lambda *args: rang.append(True))
    before = signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        on_main(loops)
        assert not rang
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 0.5
        time.sleep(0.6)
        assert rang
    finally:
        signal.setitimer(signal.ITIMER_REAL, *before)
        signal.signal(signal.SIGALRM, old)


def test_no_timer_is_left_where_there_was_none():
    old_handler, old_timer = signal.getsignal(signal.SIGALRM), signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        on_main(loops)
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
        assert signal.getsignal(signal.SIGALRM) is old_handler
    finally:
        signal.setitimer(signal.ITIMER_REAL, *old_timer)


def test_the_learners_own_interrupt_passes_through():
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        on_main(interrupted)
