"""Streamed text: whole characters, nothing of a stop string, nothing lost."""

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kforge.engine.text import TextStream


class Bytes:
    """One token per byte: the hardest case for characters of several bytes."""

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        return self._utf8.decode(bytes([token]))

    def flush(self) -> str:
        return self._utf8.decode(b"", True)


def feed(text: str, stop: tuple[str, ...]) -> TextStream:
    stream = TextStream(Bytes(), stop)
    pieces = []
    for byte in text.encode():
        pieces.append(stream.push(byte))
        if stream.stopped:
            break
    pieces.append(stream.end())
    stream.pieces = pieces
    return stream


@given(
    st.text(alphabet="ab\u00e9\u20ac\U0001f600 ", max_size=30),
    st.lists(st.text(alphabet="ab\u00e9\u20ac", min_size=1, max_size=4), max_size=3),
)
def test_text_up_to_the_first_stop_string(text, stop):
    stream = feed(text, tuple(stop))
    ends = {s: text.find(s) + len(s) for s in stop if s in text}
    # Whatever completes first ends the text; of those that end together the longest wins.
    first = [s for s, end in ends.items() if end == min(ends.values())]
    wanted = text[: min(text.find(s) for s in first)] if first else text
    assert "".join(stream.pieces) == wanted
    assert stream.stopped == bool(ends)


def test_unfinished_characters_wait():
    stream = TextStream(Bytes())
    assert [stream.push(b) for b in "a\u20acb".encode()] == ["a", "", "", "\u20ac", "b"]


def test_a_character_cut_off_by_the_end_is_shown_as_replaced():
    stream = TextStream(Bytes())
    stream.push(0xE2)
    assert stream.end() == "\ufffd"


def test_the_beginning_of_a_stop_string_is_held_back_and_then_let_go():
    stream = TextStream(Bytes(), ("END",))
    assert [stream.push(b) for b in b"xENx"] == ["x", "", "", "ENx"]


@pytest.mark.parametrize("text", ["xEN", "EEEN"])
def test_what_was_held_back_comes_at_the_end(text):
    assert "".join(feed(text, ("END",)).pieces) == text
