"""Whether two templates mean the same: a hash over what is left without comments, spaces and names of their own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from kforge.backends.header import Header, parse
from kforge.core.workload import stable_hash
from kforge.operators import get

# Expressions of Jinja come first: in them // divides.
_COMMENT = re.compile(r"(\{\{.*?(?:\}\}|\Z)|\{%.*?(?:%\}|\Z))|\{#.*?(?:#\}|\Z)|/\*.*?(?:\*/|\Z)|//[^\n]*", re.DOTALL)
_TOKEN = re.compile(r"""[A-Za-z_]\w*|\d(?:[eEpP][+-]|[\w.'])*|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|"""
                    r"\{\{-?|-?\}\}|\{%-?|-?%\}|<<=|>>=|->|\+\+|--|<<|>>|[-+*/%&|^=!<>]=|&&|\|\||::|\S")
_NAME = re.compile(r"[A-Za-z_]\w*\Z")
_BRACKETS = ("{{", "}}", "{%", "%}")
# Behind these a name is used, not declared: words of both languages that are no type.
_USED_BEHIND = frozenset(re.findall(r"\w+", """
    return else case goto new delete sizeof in and or not if while do switch elif is import from include throw default
    operator const constexpr static inline extern volatile KF_INLINE static_cast reinterpret_cast const_cast with endfor
    endif endmacro endset public private namespace"""))
_WORDS = _USED_BEHIND | frozenset(re.findall(r"\w+", """
    void bool char short int long float double signed unsigned auto struct class enum union using typedef template
    typename for break continue true false nullptr alignas alignof decltype asm this context macro set block filter
    int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t size_t ptrdiff_t uintptr_t
    range loop min max fmt target layout lanes kf kforge_kernel kforge_scratch_bytes kf_launch kf_tensor"""))


def meaning(path: str, text: str, header: Header | None = None) -> str:
    """A hash that renaming, reformatting, commenting and other defaults do not change. ``header``: where the text's own
    only names a part that has it. Raises TemplateError.

    Names count as the template's own where they are declared in it; what it includes and what the headers and the
    compiler offer keep their names. Missing a duplicate costs a trial, so doubt makes two templates different.
    """
    header = header or parse(path, text)
    body = _COMMENT.sub(lambda found: found[1] or " ", text[text.index("#}") + 2:])
    tokens = list(_tokens(body))
    given = set(get(header.operator).static_axes)
    own = (_declared(tokens) | {param.name for param in header.params}) - given
    numbers: dict[str, str] = {}

    def named(token: str) -> str:
        return numbers.setdefault(token, f"${len(numbers)}") if token in own else token

    return stable_hash([*_space(header, named), *(named(token) for token in tokens)], 40)


def _tokens(text: str) -> Iterator[str]:
    for token in _TOKEN.findall(text):
        if token.strip("-") in _BRACKETS:
            yield token.strip("-")  # the space that a dash takes away means nothing in C++
        elif token[0] == "'":
            yield f'"{token[1:-1]}"'  # Jinja has both quotes
        else:
            yield token


def _declared(tokens: list[str]) -> set[str]:
    """Names that stand where C++ or Jinja declare one: behind a type, behind ``*`` or ``&`` of a type, or behind a
    comma with a value of their own."""
    found = set()
    padded = ["", "", *tokens, ""]
    for before, last, token, after in zip(padded, padded[1:], padded[2:], padded[3:], strict=False):
        if not _NAME.match(token) or token in _WORDS or token.startswith("_") or after == "::":
            continue
        typed = _NAME.match(last) and last not in _USED_BEHIND
        starred = last in ("*", "&") and after != "(" and (
            before == "," or (_NAME.match(before) and before not in _USED_BEHIND))
        if typed or starred or (last == "," and after == "="):
            found.add(token)
    return found


def _space(header: Header, named: Callable[[str], str]) -> list[str]:
    params = [[named(p.name), sorted(repr(c) for c in p.choices), [named(t) for t in _tokens(p.when)]]
              for p in header.params]
    rules = sorted(" ".join(named(t) for t in _tokens(text)) for text in header.constraints)
    applies = [named(t) for t in _tokens(header.applies)]
    parts = (header.operator, header.numerics.value, sorted(header.requires), applies, params, rules)
    return [repr(part) for part in parts]
