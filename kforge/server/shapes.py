"""Answers as OpenAI's interface shapes them: whole, or as chunks of a stream."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kforge.engine.request import FinishReason, Output
from kforge.server.words import CompletionLogprobs, Ranked, chat_entry

if TYPE_CHECKING:
    from kforge.models.tokenizer import Vocabulary
    from kforge.server.plan import Plan

_FINISH = {FinishReason.END: "stop", FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


@dataclass
class Choice:
    """An answer as far as it has come; ``take_`` methods give what is new since they were last called."""

    index: int
    tokens: int = 0
    finish: str | None = None
    text: list[str] = field(default_factory=list)

    def take_text(self) -> str:
        text = "".join(self.text)
        self.text.clear()
        return text


class Shape(ABC):
    """One answer of the server, with a choice for every job of its plan."""

    prefix: str
    whole_object: str
    chunk_object: str

    def __init__(self, model: str, plan: Plan, vocabulary: Vocabulary) -> None:
        self.id = f"{self.prefix}-{uuid.uuid4().hex}"
        self._head = {"id": self.id, "created": int(time.time()), "model": model}
        self._plan = plan
        self._vocabulary = vocabulary
        self.choices = [Choice(i) for i in range(len(plan.jobs))]

    def add(self, index: int, output: Output) -> None:
        """Takes a token into choice ``index``."""
        choice = self.choices[index]
        self._note_prompt(index, output)
        if self._plan.empty:
            choice.finish = "length"
            return
        choice.finish = None if output.finish is None else _FINISH[output.finish]
        choice.tokens += 1
        choice.text.append(output.text)
        if output.logprobs is not None:
            self._note(index, output)

    @property
    def usage(self) -> dict[str, int]:
        prompt, answer = self._plan.prompt_tokens, sum(choice.tokens for choice in self.choices)
        return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}

    def whole(self) -> dict[str, Any]:
        """The whole answer, once every choice has come to its end."""
        choices = [self._final(choice) for choice in self.choices]
        return {**self._head, "object": self.whole_object, "choices": choices, "usage": self.usage}

    def chunk(self, *choices: dict[str, Any], include_usage: bool = False) -> dict[str, Any]:
        """Choices as one chunk; where usage was asked for, every chunk but the last has none."""
        usage = {"usage": None} if include_usage else {}
        return {**self._head, "object": self.chunk_object, "choices": list(choices), **usage}

    def last_chunk(self) -> dict[str, Any]:
        return {**self.chunk(), "usage": self.usage}

    def pending(self, index: int) -> list[dict[str, Any]]:
        """What a stream has to say about a choice now: new text, then its end. Tokens that brought no text yet wait."""
        choice = self.choices[index]
        said = []
        text = choice.take_text()
        if text or (choice.finish and self._has_notes(index)):
            said.append(self._part(index, text))
        if choice.finish:
            said.append(self._end(index, choice.finish))
        return said

    @abstractmethod
    def opening(self) -> list[dict[str, Any]]:
        """Choices of the chunks that come before any token."""

    @abstractmethod
    def _note(self, index: int, output: Output) -> None:
        """Keeps a token's log probabilities."""

    def _note_prompt(self, index: int, output: Output) -> None:
        """Keeps the log probabilities of a prompt's tokens, which come with the first token. Chats have none."""
        return

    @abstractmethod
    def _has_notes(self, index: int) -> bool: ...

    @abstractmethod
    def _part(self, index: int, text: str) -> dict[str, Any]: ...

    @abstractmethod
    def _end(self, index: int, finish: str) -> dict[str, Any]: ...

    @abstractmethod
    def _final(self, choice: Choice) -> dict[str, Any]: ...


class ChatShape(Shape):
    prefix, whole_object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, model: str, plan: Plan, vocabulary: Vocabulary) -> None:
        super().__init__(model, plan, vocabulary)
        self._entries: list[list[dict[str, Any]]] = [[] for _ in plan.jobs]

    def opening(self) -> list[dict[str, Any]]:
        return [self._choice(choice.index, {"role": "assistant", "content": ""}) for choice in self.choices]

    def _note(self, index: int, output: Output) -> None:
        if output.finish is not FinishReason.END:  # the end token is no part of a message
            assert output.logprobs is not None
            self._entries[index].append(chat_entry(self._vocabulary, output.logprobs))

    def _has_notes(self, index: int) -> bool:
        return bool(self._entries[index])

    def _part(self, index: int, text: str) -> dict[str, Any]:
        return {**self._choice(index, {"content": text}), "logprobs": self._logprobs(index)}

    def _end(self, index: int, finish: str) -> dict[str, Any]:
        return {**self._choice(index, {}), "finish_reason": finish}

    def _final(self, choice: Choice) -> dict[str, Any]:
        message = {"role": "assistant", "content": choice.take_text(), "refusal": None}
        return {"index": choice.index, "message": message, "logprobs": self._logprobs(choice.index),
                "finish_reason": choice.finish}

    def _choice(self, index: int, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _logprobs(self, index: int) -> dict[str, Any] | None:
        if self._plan.jobs[index].params.logprobs is None:
            return None
        entries, self._entries[index] = self._entries[index], []
        return {"content": entries, "refusal": None}


class CompletionShape(Shape):
    prefix, whole_object, chunk_object = "cmpl", "text_completion", "text_completion"

    def __init__(self, model: str, plan: Plan, vocabulary: Vocabulary) -> None:
        super().__init__(model, plan, vocabulary)
        self._lists = [CompletionLogprobs(vocabulary, bool(plan.echoes)) for _ in plan.jobs]
        self._unscored = {i for i, job in enumerate(plan.jobs) if job.params.prompt_logprobs is not None}
        for choice, echo in zip(self.choices, plan.echoes, strict=False):
            choice.text.append(echo)

    def opening(self) -> list[dict[str, Any]]:
        return []

    def _note_prompt(self, index: int, output: Output) -> None:
        if index in self._unscored:
            self._unscored.remove(index)
            ranked: list[Ranked | None] = [None, *(output.prompt_logprobs or ())]
            for token, of in zip(self._plan.jobs[index].prompt, ranked, strict=True):
                self._lists[index].add(token, of)

    def _note(self, index: int, output: Output) -> None:
        self._lists[index].add(output.token, output.logprobs)

    def _has_notes(self, index: int) -> bool:
        return bool(self._lists[index].tokens)

    def _part(self, index: int, text: str) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": self._logprobs(index), "finish_reason": None}

    def _end(self, index: int, finish: str) -> dict[str, Any]:
        return {"index": index, "text": "", "logprobs": None, "finish_reason": finish}

    def _final(self, choice: Choice) -> dict[str, Any]:
        return {"index": choice.index, "text": choice.take_text(), "logprobs": self._logprobs(choice.index),
                "finish_reason": choice.finish}

    def _logprobs(self, index: int) -> dict[str, Any] | None:
        return None if self._plan.jobs[index].params.logprobs is None else self._lists[index].take()
