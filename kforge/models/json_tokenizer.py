"""The tokenizer of a safetensors folder: tokenizer.json with tokenizer_config.json."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer as Backend

from kforge.core.errors import KforgeError
from kforge.models.chat import ChatTemplate
from kforge.models.config import ModelConfig
from kforge.models.tokenizer import BackendEncoder, PieceStyle, Tokenizer, Vocabulary


def tokenizer_of(path: Path, config: ModelConfig) -> Tokenizer:
    """Raises ``KforgeError`` when tokenizer.json is missing or does not parse."""
    file = path / "tokenizer.json"
    if not file.exists():
        raise KforgeError(f"{file}: no such file; the folder must hold the tokenizer too.")
    try:
        backend = Backend.from_file(str(file))
    except Exception as error:  # the package raises bare Exception
        raise KforgeError(f"{file}: cannot be read ({error}).") from error
    added = backend.get_added_tokens_decoder()
    texts = tuple(backend.id_to_token(i) or "" for i in range(max(config.vocab, backend.get_vocab_size())))
    style = PieceStyle.BYTE_LEVEL if "ByteLevel" in _decoder(backend) else PieceStyle.SENTENCE_PIECE
    vocabulary = Vocabulary(texts, frozenset(i for i, t in added.items() if t.special),
                            frozenset(i for i, t in added.items() if not t.special), style)
    chat = None
    if config.chat_template is not None:
        names = [texts[i] if i is not None and i < len(texts) else "" for i in (config.bos_id, config.eos_id)]
        chat = ChatTemplate(config.chat_template, str(path), *names)
    # The file's own rule: what its post-processor puts before a text.
    start = backend.encode("a", add_special_tokens=True).ids[:1]
    add_bos = config.bos_id is not None and start == [config.bos_id]
    return Tokenizer(BackendEncoder(backend), vocabulary, config.bos_id, config.eos_id, add_bos, chat)


def _decoder(backend: Backend) -> str:
    return json.dumps(json.loads(backend.to_str()).get("decoder"))
