"""The run that the pictures in docs/media show: visitors ask questions at a library's desk, and a real model answers.

Knows what is asked, and when. Does not know browsers or pictures.

It is there to be watched, so each thing that happens to blocks happens in it, one after the other: a prompt is
computed in chunks; others that begin the same hit its blocks; a request of three outputs forks, and they copy the
block that they share and write into; a request is forked on the way; a second question goes on from an answer whose
request is long done; and late in the run the pool is so full that the oldest cached blocks are evicted.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from pagedkv_lab import Engine, SamplingParams
from pagedkv_lab.engine import LoadedModel
from pagedkv_lab.show import Recording
from pagedkv_lab.show.recording import record

TITLE = "A small model answers a library's visitors: its KV cache, block by block"

#: 6 blocks of 16 tokens with the words that the chat template puts around it.
SYSTEM_PROMPT = (
    "You are a patient teacher at a public library. People of all ages come to your desk with a question. Answer in "
    "a few short sentences, in plain words that a ten-year-old understands. Begin with the most important point. Give "
    "one example from daily life. If you explain how something works, say what happens first, what happens next and "
    "what comes of it. Be kind and cheerful, and do not use lists or headings."
)

#: What two visitors ask about: 7 more blocks that they share.
NOTICE = (
    'This is the notice at our door: "Story night is on Friday the ninth of May, from six to eight in the evening, in '
    "the reading room on the first floor. Mrs. Rosa reads three tales from the sea, and after the second one there is "
    "warm milk and apple cake for everyone. Children under six come with a grown-up. Bring a cushion and a torch, "
    "because we turn off the lamps. There are forty places. If you want one, write your name on the list beside the "
    'return desk before Thursday. It costs nothing."'
)

GREEDY = SamplingParams(max_tokens=96)
THREE_STORIES = SamplingParams(n=3, temperature=0.8, top_p=0.9, seed=1, max_tokens=90)
TWO_POEMS = SamplingParams(n=2, temperature=0.8, top_p=0.9, seed=3, max_tokens=56)
ANOTHER_WAY = SamplingParams(temperature=0.8, top_p=0.9, seed=3, max_tokens=110)


@dataclass(frozen=True)
class Ask:
    """A question that comes before step `step`; `after`: an earlier question, whose conversation it goes on with."""

    step: int
    question: str
    params: SamplingParams = GREEDY
    after: str | None = None


@dataclass(frozen=True)
class Fork:
    """Before step `step`, the answer to `question` is forked, and the fork goes on in its own way."""

    step: int
    question: str
    params: SamplingParams


SKY = "Why is the sky blue?"
NOTE = "Write a thank-you note to my grandmother for the scarf."

SCENARIO = (
    Ask(1, SKY),
    Ask(6, "How does a rainbow form?"),
    Ask(12, "Write the beginning of a story about a clever fox.", THREE_STORIES),
    Ask(22, NOTE),
    Ask(32, f"{NOTICE} What do I bring?"),
    Fork(44, NOTE, ANOTHER_WAY),
    Ask(52, "Why do we need sleep?"),
    Ask(60, f"{NOTICE} Write an invitation for my friend."),
    Ask(72, "What is gravity?"),
    Ask(80, "Can you say that in one sentence?", after=SKY),
    Ask(86, "Write a short poem about rain.", TWO_POEMS),
    Ask(94, "What is a library for?", SamplingParams(max_tokens=48)),
)


def make_engine(model: LoadedModel) -> Engine:
    """max_num_batched_tokens is small, so that a long prompt takes several steps and can be watched."""
    return Engine(model, block_size=16, num_gpu_blocks=72, max_model_len=512, max_num_batched_tokens=64)


def record_run(engine: Engine, scenario: Iterable[Ask | Fork] = SCENARIO) -> Recording:
    """Run the scenario to its end. The same for the same model and threads, but for seconds and tokens a second."""
    to_come = sorted(scenario, key=lambda event: event.step)
    chats: dict[str, list[dict[str, str]]] = {}
    requests: dict[str, int] = {}
    asked: dict[int, str] = {}
    with record(engine) as recording:
        step = 0
        while to_come or engine.has_unfinished_requests():
            step += 1
            while to_come and to_come[0].step <= step:
                event = to_come.pop(0)
                if isinstance(event, Fork):
                    engine.fork(requests[event.question], event.params)
                    continue
                before = chats[event.after] if event.after else [{"role": "system", "content": SYSTEM_PROMPT}]
                chats[event.question] = [*before, {"role": "user", "content": event.question}]
                requests[event.question] = engine.add_request(chats[event.question], event.params)
                asked[requests[event.question]] = event.question
            for output in engine.step().finished:
                if output.request_id in asked:
                    chats[asked[output.request_id]].append({"role": "assistant", "content": output.text})
    return recording
