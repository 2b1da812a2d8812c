"""How text is cut into words before byte-pair merging: the rule behind each name in ``tokenizer.ggml.pre``.

A rule is a list of patterns applied one after another; matches and the gaps between them become separate pieces.
The patterns are the published ones of the models' own tokenizers (GPT-2's, those of Llama 3 and Qwen 2, and o200k of
OpenAI's tiktoken).
"""

from __future__ import annotations

from dataclasses import dataclass

_CONTRACTIONS = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL
_CAPITAL, _SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_O200K = (rf"[^\r\n\p{{L}}\p{{N}}]?(?:{_CAPITAL}*{_SMALL}+|{_CAPITAL}+{_SMALL}*){_CONTRACTIONS}?"
          r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
_DEFAULT_PUNCTUATION = r"[\p{P}\$\+<=>\^~\|]+"


@dataclass(frozen=True)
class PreTokenizer:
    """``ignore_merges``: a word that is a token is taken whole. ``add_bos``: the rule when the file does not say."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_GPT2_RULE = PreTokenizer((_GPT2,))
_DIGITS_RULE = PreTokenizer((r"\p{N}", _GPT2))
_LLAMA3_RULE = PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)
_QWEN2_RULE = PreTokenizer((_QWEN2,))

RULES = {
    "default": PreTokenizer((_DEFAULT_PUNCTUATION, _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2": _GPT2_RULE,
    "olmo": _GPT2_RULE,
    "smollm": _DIGITS_RULE,
    "starcoder": _DIGITS_RULE,
    "refact": _DIGITS_RULE,
    "command-r": _DIGITS_RULE,
    "llama-bpe": _LLAMA3_RULE,
    "llama3": _LLAMA3_RULE,
    "llama-v3": _LLAMA3_RULE,
    "falcon3": _LLAMA3_RULE,
    "dbrx": PreTokenizer((_LLAMA3,)),
    "smaug-bpe": PreTokenizer((_LLAMA3,)),
    "gpt-4o": PreTokenizer((_O200K,), ignore_merges=True),
    "qwen2": _QWEN2_RULE,
    "deepseek-r1-qwen": _QWEN2_RULE,
    "stablelm2": _QWEN2_RULE,
}
