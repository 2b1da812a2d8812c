"""The tokenizer that a GGUF file carries, built on the ``tokenizers`` package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from kforge.core.errors import KforgeError
from kforge.models.chat import ChatTemplate
from kforge.models.config import ModelConfig
from kforge.models.pretokenizers import RULES, PreTokenizer
from kforge.models.tokenizer import PartitioningEncoder, PieceStyle, SpecialToken, Tokenizer, Vocabulary

if TYPE_CHECKING:
    from kforge.models.gguf_header import Header

# tokenizer.ggml.token_type, as the GGUF specification numbers them
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
_ABSENT = "\ue000 no such byte"  # no text's bytes are spelled like this


def tokenizer_of(path: Path, header: Header, config: ModelConfig) -> Tokenizer:
    """Raises ``KforgeError`` for a kind of tokenizer, or a pre-tokenizer, that is not known."""
    fields = header.fields
    kind, texts = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.tokens")
    if kind not in ("gpt2", "llama"):
        raise KforgeError(f"{path}: tokenizer '{kind}' is not supported (supported: gpt2, llama).")
    if not isinstance(texts, list) or len(texts) != config.vocab:
        found = len(texts) if isinstance(texts, list) else "none"
        raise KforgeError(f"{path}: 'tokenizer.ggml.tokens' holds {found}, the embedding table {config.vocab} rows.")
    kinds = fields.get("tokenizer.ggml.token_type")
    kinds = kinds if isinstance(kinds, list) and len(kinds) == len(texts) else [1] * len(texts)
    control = {i for i, k in enumerate(kinds) if k in (_CONTROL, _UNKNOWN)}
    user = {i for i, k in enumerate(kinds) if k == _USER_DEFINED}
    specials = [SpecialToken(i, texts[i], i in control) for i in sorted(control | user) if texts[i]]
    if kind == "gpt2":
        rule = _rule(path, fields.get("tokenizer.ggml.pre", "default"))
        backend = _byte_level(path, texts, fields.get("tokenizer.ggml.merges"), rule)
        encoder = PartitioningEncoder(backend, specials, len(texts))
        style, default_bos, prefix = PieceStyle.BYTE_LEVEL, rule.add_bos, False
    else:
        scores = fields.get("tokenizer.ggml.scores")
        prefix = bool(fields.get("tokenizer.ggml.add_space_prefix", True))
        encoder = PartitioningEncoder(_sentence_piece(path, texts, scores, kinds), specials, len(texts), prefix)
        style, default_bos = PieceStyle.SENTENCE_PIECE, True
    chat = None
    if config.chat_template is not None:
        names = [texts[i] if i is not None and i < len(texts) else "" for i in (config.bos_id, config.eos_id)]
        chat = ChatTemplate(config.chat_template, str(path), *names)
    vocabulary = Vocabulary(tuple(texts), frozenset(control), frozenset(user), style, prefix)
    add_bos = bool(fields.get("tokenizer.ggml.add_bos_token", default_bos))
    return Tokenizer(encoder, vocabulary, config.bos_id, config.eos_id, add_bos, chat)


def _rule(path: Path, name: object) -> PreTokenizer:
    if name not in RULES:
        raise KforgeError(f"{path}: pre-tokenizer '{name}' is not supported (supported: {', '.join(sorted(RULES))}).")
    return RULES[str(name)]


def _byte_level(path: Path, texts: list[str], merges: object, rule: PreTokenizer) -> Backend:
    if not isinstance(merges, list):
        raise KforgeError(f"{path}: 'tokenizer.ggml.merges' is missing.")
    pairs = [tuple(m.split(" ", 1)) if m[:1] != " " else (" ", m[2:]) for m in merges]
    vocab = {text: i for i, text in reversed(list(enumerate(texts)))}  # the first of equal texts wins
    # A byte that the vocabulary lacks yields no token, yet keeps its neighbours apart while merging: it becomes an id
    # beyond the vocabulary, which the encoder drops.
    vocab[_ABSENT] = len(texts)
    try:
        backend = Backend(models.BPE(vocab=vocab, merges=pairs, unk_token=_ABSENT, ignore_merges=rule.ignore_merges))
    except Exception as error:  # the package raises bare Exception
        raise KforgeError(f"{path}: vocabulary and merges do not fit together ({error}).") from error
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rule.patterns]
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentence_piece(path: Path, texts: list[str], scores: object, kinds: list[int]) -> Backend:
    """Sentence-piece BPE merges the pair whose union has the best score, so every split of a token is a merge."""
    if not isinstance(scores, list) or len(scores) != len(texts):
        raise KforgeError(f"{path}: 'tokenizer.ggml.scores' is missing or of the wrong length.")
    from tokenizers import normalizers

    vocab = {text: i for i, text in reversed(list(enumerate(texts)))}
    normal = {text for text, kind in zip(texts, kinds, strict=True) if kind == 1}
    ranked = sorted(normal, key=lambda text: (-scores[vocab[text]], vocab[text]))
    merges = [(text[:cut], text[cut:]) for text in ranked for cut in range(1, len(text))
              if text[:cut] in vocab and text[cut:] in vocab]
    backend = Backend(models.BPE(vocab=vocab, merges=merges, byte_fallback=True, fuse_unk=False))
    backend.normalizer = normalizers.Replace(" ", "\u2581")
    return backend
