"""The check of exercise 4.3: what of a request belongs into the key.

Knows the fields of a request, and what each does to keys and values.
"""

import inspect
from collections.abc import Mapping
from itertools import permutations
from typing import Any

from pagedkv_lab.course.checks.keys import Keys, always_none
from pagedkv_lab.course.checks.probe import Probe, Wrong, say_none, say_unwritten, short
from pagedkv_lab.course.checks.report import UNWRITTEN, Report

#: A request like any other; the fields that are None are those that most requests don't set.
REQUEST: dict[str, Any] = {
    "request_id": "req-1",
    "arrival_time": 1764547200.25,
    "position": 0,
    "temperature": 0.7,
    "seed": None,
    "max_tokens": 64,
    "cache_salt": None,
    "lora_name": None,
    "image_hash": None,
}
#: Fields that must stay out, with another value and the reason.
OUT = {
    "request_id": ("req-2", "It is another one for each request, so no two requests would ever share a block."),
    "arrival_time": (1764547260.5, "No two requests come at the same moment, so nothing would ever be shared."),
    "position": (3, "Where a request stands in the queue has nothing to do with what its tokens' keys and values are."),
    "temperature": (0.0, "It is applied to the model's output, long after keys and values are computed."),
    "seed": (7, "It steers which token is drawn, not what the prompt's keys and values are."),
    "max_tokens": (256, "How long the answer may be changes nothing in the prompt."),
    "trace_id": (
        "4bf92f35",
        "Nobody thought of this field. Name the fields that belong in; all others stay out.",
    ),
}
#: Fields that must go in, with two values and what happens without them.
IN = {
    "cache_salt": ("team-7", "team-8", "Two customers who chose different salts would share blocks, and each could "
                   "find out by the time it takes what the other has asked."),
    "lora_name": ("legal", "medical", "Another adapter is another model: it computes other keys and values from the "
                  "same tokens."),
    "image_hash": ("9f2c", "77ab", "All images are the same placeholder tokens. Without it, a question about one "
                   "picture is answered from another."),
}  # fmt: skip


def examine_extra_keys(function: Any) -> Report:
    probe = Probe("extra_keys")
    try:
        requests = Requests(probe, function)
        _first_requests(requests)
        for field, (value, reason) in OUT.items():
            message = f"`{field}` goes into the key. {reason}"
            requests.compare("breaks_sharing", message, {}, {field: value}, same=True, hint=1)
        for field, (one, other, reason) in IN.items():
            message = f"`{field}` is missing from the key. {reason}"
            requests.compare("misses_field", message, {}, {field: one}, same=False, hint=1)
            requests.compare("misses_field", message, {field: one}, {field: other}, same=False, hint=1)
            message = f"A `{field}` called “None” is taken for none at all. Leave the pair out where the field is None."
            requests.compare("none_as_text", message, {}, {field: "None"}, same=False, hint=2)
        message = "Two different fields with the same text give the same pairs. The tag says which field it is."
        for one, other in (("cache_salt", "lora_name"), ("lora_name", "image_hash"), ("cache_salt", "image_hash")):
            requests.compare("confuses_fields", message, {one: "x"}, {other: "x"}, same=False, hint=2)
        message = "Where two of the three are set, one is lost."
        for one, other in permutations(IN, 2):
            requests.compare("misses_field", message, {one: "a", other: "b"}, {one: "a"}, same=False)
        message = "The order of a request's fields changes the pairs. Ask for them by name, in an order of your own."
        salted = {"cache_salt": "a", "lora_name": "b"}
        backwards = dict(reversed((REQUEST | salted).items()))
        if requests.pairs(salted) != requests.pairs(backwards, whole=True):
            got = f"{requests.pairs(salted)}\n{requests.pairs(backwards, whole=True)}"
            call = "the same request, its fields in two orders"
            probe.fail("depends_on_order", message, call=call, expected="the same pairs", got=got, hint=2)
    except Wrong as wrong:
        return Report(probe.name, probe.cases, diagnosis=wrong.diagnosis)
    tried = ("each field alone", "fields that are None", "an unknown field", "two at once")
    return Report(probe.name, probe.cases, tried)


class Requests(Keys):
    """Calls a function that picks pairs from a request."""

    def pairs(self, fields: Mapping[str, Any], whole: bool = False) -> tuple[tuple[str, str], ...]:
        """The pairs of the usual request with these fields, or of one that has these fields only."""
        request = dict(fields) if whole else {**REQUEST, **fields}
        text = _request_text(fields)
        given = dict(request)
        outcome = self.probe.call(self.function, given, text=text, expected="a tuple of (tag, value) pairs")
        rest = {"call": text, "expected": "a tuple of (tag, value) pairs of texts", "got": short(outcome.value)}
        if given != request:
            self.probe.fail(
                "mutates", "It changed the request, which belongs to the caller. Read from it only.", **rest
            )
        if outcome.value is None or outcome.value is Ellipsis:
            code, message = say_none(outcome.printed)
            self.probe.fail(code, message, printed=outcome.printed, hint=1, **rest)
        if inspect.iscoroutine(outcome.value):
            outcome.value.close()
        if not isinstance(outcome.value, tuple | list):
            self.probe.fail("not_pairs", "It must return a tuple of pairs; `()` where there are none.", hint=2, **rest)
        for pair in outcome.value:
            if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
                message = f"{short(pair)} is no pair of a tag and a value, both of them text."
                self.probe.fail("not_pairs", message, hint=2, **rest)
        return tuple((str(tag), str(value)) for tag, value in outcome.value)

    def compare(
        self, code: str, message: str, one: Mapping[str, Any], other: Mapping[str, Any], *, same: bool, hint: int = 1
    ) -> None:
        """Two requests that differ in these fields must give the same pairs, or different ones."""
        first, second = self.pairs(one), self.pairs(other)
        if (first == second) != same:
            call = f"{_request_text(one)}\n{_request_text(other)}"
            expected = "the same pairs" if same else "different pairs"
            self.probe.fail(code, message, call=call, expected=expected, got=f"{first}\n{second}", hint=hint)


def _request_text(fields: Mapping[str, Any]) -> str:
    changes = ", ".join(f"{name!r}: {value!r}" for name, value in fields.items() if REQUEST.get(name) != value)
    return f"extra_keys(request | {{{changes}}})" if changes else "extra_keys(request)"


def _first_requests(requests: Requests) -> None:
    try:
        requests.pairs({})
    except Wrong as wrong:
        calls = [({**REQUEST, "cache_salt": "a"},), (dict(REQUEST),)]
        if wrong.diagnosis.code != "returns_none" or not always_none(requests, *calls):
            raise
        requests.probe.fail(UNWRITTEN, say_unwritten("`extra_keys` returned None"), hint=1)
