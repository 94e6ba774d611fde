"""Text as it comes, token by token, and where a stop string cuts it.

Knows a tokenizer and strings. One token may be part of a letter, so text comes when a letter is complete.
"""

from collections.abc import Sequence
from typing import Any

from tokenizers.decoders import DecodeStream


class Detokenizer:
    """Turns one sequence's output tokens into text. `stop` strings end it; `text` never holds one."""

    def __init__(self, tokenizer: Any, stop: Sequence[str] = ()):
        self.text = ""
        self._stop = tuple(stop)
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._fast = getattr(tokenizer, "backend_tokenizer", None)
        self._stream = DecodeStream(skip_special_tokens=True) if self._fast is not None else None

    def push(self, token_id: int) -> bool:
        """Take one more token. Returns True where the text has just run into a stop string, which is cut off."""
        self._tokens.append(token_id)
        before = len(self.text)
        if self._stream is not None:
            self.text += self._stream.step(self._fast, token_id) or ""
        else:
            text = self._tokenizer.decode(self._tokens, skip_special_tokens=True)
            self.text = self.text if text.endswith("\N{REPLACEMENT CHARACTER}") else text
        return self._cut(before)

    def finish(self) -> None:
        """No token comes any more: what was held back as half a letter is given out as it is."""
        whole = self._tokenizer.decode(self._tokens, skip_special_tokens=True)
        if whole.startswith(self.text):
            before, self.text = len(self.text), whole
            self._cut(before)

    def _cut(self, before: int) -> bool:
        """Cut the text at the first stop string that ends behind position `before`."""
        found = [
            at for stop in self._stop if (at := self.text.find(stop, max(0, before - len(stop) + 1))) >= 0
        ]
        if found:
            self.text = self.text[: min(found)]
        return bool(found)

    @property
    def safe_length(self) -> int:
        """Length of the text that no stop string can still reach: what a stream may show."""
        held_back = max(
            (
                length
                for stop in self._stop
                for length in range(1, len(stop))
                if self.text.endswith(stop[:length])
            ),
            default=0,
        )
        return len(self.text) - held_back
