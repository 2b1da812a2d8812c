"""Foreign text in the form in which a page, a prompt or a terminal may show it."""

from __future__ import annotations

import re

# What moves a cursor, hides text or turns its direction: models write into terminals and pages.
_ODD = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
                  "\ud800-\udfff]")


def plain(text: str) -> str:
    """With characters that do anything but show themselves written as escapes."""
    return _ODD.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one_line(text: str, most: int = 400) -> str:
    """In one line of at most so many printable ASCII characters: what a confined process has said."""
    return " ".join(re.sub(r"[^ -~]+", " ", text).split())[:most]


def brief(text: str, most: int) -> str:
    """In one line, cut behind so many characters; not made plain."""
    words = " ".join(text.split())
    return words if len(words) <= most else f"{words[:most]} ..."


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def percent(ratio: float) -> str:
    """Of a ratio minus one."""
    return f"{100 * ratio:+.1f} %"
