"""Token ids beside llama.cpp's on random Unicode strings.

    python bench/tokenizer_agreement.py MODEL.gguf --peer-python /path/to/venv/bin/python [--count 10000] [--json FILE]

``--peer-python`` is any interpreter that can import ``llama_cpp``. ``--rules llama-bpe,qwen2`` compares the model's
vocabulary under other pre-tokenisers as well. ``--fixture FILE`` writes strings with llama.cpp's ids for the tests.
Ends with 1 when a string differs.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import gguf
import regex
from measuring import write_json

from kforge.models.gguf_file import GGUFModel
from kforge.models.gguf_header import Header
from kforge.models.gguf_tokenizer import tokenizer_of

RANGES = [(0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x530), (0x590, 0x780), (0x900, 0xE80), (0x1100, 0x1200),
          (0x1E00, 0x2000), (0x2000, 0x2070), (0x20A0, 0x2C00), (0x3000, 0x3100), (0x4E00, 0x9FFF), (0xAC00, 0xD7A4),
          (0xE000, 0xE100), (0xFB00, 0x10000), (0x1F300, 0x1FB00), (0x20000, 0x20400), (0, 0x20), (0x7F, 0xA0)]
WORDS = ["the", "Hello", "don't", "I'LL", "we've", "it'S", " ", "  ", "\n", "\r\n", "\t", "\n\n ", "   x", "1", "12345",
         "3.14", "x=y", "foo_bar()", "//", "<|", "|>", "...", "é", "e\u0301", "ﬁ", "İ", "ß", "日本語", "한국어",
         "עברית", "العربية", "हिन्दी", "ไทย",
         "👩‍👩‍👧‍👦", "🇩🇪", "\u200b", "\ufeff", "\u00a0", "\u3000", "\u0085", "½", "²", "Ⅷ", "٣", "\0"]


def random_strings(count: int, seed: int, specials: list[str]) -> list[str]:
    """A third over all assigned characters, a third within one or two scripts, a third of awkward pieces."""
    rng = random.Random(seed)
    assigned = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000 and regex.match(r"\P{Cn}", chr(c))]
    texts = []
    for i in range(count):
        length = rng.choice([1, 2, 3, 5, 10, 20, 60])
        if i % 3 == 0:
            texts.append("".join(chr(rng.choice(assigned)) for _ in range(length)))
        elif i % 3 == 1:
            scripts = rng.sample(RANGES, 2)
            texts.append("".join(chr(rng.randrange(*rng.choice(scripts))) if rng.random() > 0.2 else rng.choice(" \n'1")
                                 for _ in range(length)))
        else:
            texts.append("".join(rng.choice(WORDS + specials) for _ in range(length)))
    return texts


def peer_answer(python: str, model: Path, strings: list[str], special: bool) -> dict:
    """llama.cpp's ``ids`` and the ``version`` of its Python package, from its own environment."""
    request = json.dumps({"model": str(model.resolve()), "strings": strings, "special": special})
    script = Path(__file__).parent / "drivers" / "llama_cpp_tokenizer.py"
    done = subprocess.run([python, str(script)], input=request, capture_output=True, text=True, check=True)
    return json.loads(done.stdout[done.stdout.index("{"):])


def write_vocabulary(header: Header, rule: str, path: Path) -> None:
    """A GGUF file with the header's vocabulary, the given pre-tokeniser and no tensors."""
    fields = header.fields
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_vocab_size(len(fields["tokenizer.ggml.tokens"]))
    writer.add_context_length(1)
    writer.add_embedding_length(1)
    writer.add_block_count(1)
    writer.add_head_count(1)
    writer.add_feed_forward_length(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(rule)
    writer.add_token_list(fields["tokenizer.ggml.tokens"])
    writer.add_token_types(fields["tokenizer.ggml.token_type"])
    writer.add_token_merges(fields["tokenizer.ggml.merges"])
    writer.add_bos_token_id(fields["tokenizer.ggml.bos_token_id"])
    writer.add_eos_token_id(fields["tokenizer.ggml.eos_token_id"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def with_rule(header: Header, rule: str) -> Header:
    return replace(header, fields={**header.fields, "tokenizer.ggml.pre": rule})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rules", default="")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--fixture", type=Path)
    args = parser.parse_args()

    model = GGUFModel(args.model)
    own = str(model.header.fields.get("tokenizer.ggml.pre", "default"))
    different, seconds, fixture = 0, 0.0, {}
    for rule in dict.fromkeys([own, *filter(None, args.rules.split(","))]):
        tokenizer = tokenizer_of(args.model, with_rule(model.header, rule), model.config)
        control = sorted(tokenizer.vocabulary.control)[:8]
        strings = random_strings(args.count, args.seed, [tokenizer.vocabulary.texts[i] for i in control])
        with tempfile.TemporaryDirectory() as folder:
            file = args.model
            if rule != own:
                file = Path(folder) / "vocabulary.gguf"
                write_vocabulary(model.header, rule, file)
            theirs = {special: peer_answer(args.peer_python, file, strings, special) for special in (False, True)}
        count = 0
        for special, answer in theirs.items():
            start = time.perf_counter()
            ours = [tokenizer.encode(text, add_bos=False, parse_special=special) for text in strings]
            seconds += time.perf_counter() - start
            for text, a, b in zip(strings, ours, answer["ids"], strict=True):
                count += a != b
                if a != b and count <= 10:
                    print(f"differs ({rule}, special={special}): {text!r}\n  kforge    {a}\n  llama.cpp {b}")
        different += count
        fixture[rule] = [{"text": text, "ids": ids} for text, ids in zip(strings, theirs[True]["ids"], strict=True)]
        print(f"{args.model.name}, {rule}: {2 * len(strings)} encodings of {len(strings)} strings, "
              f"{count} differ from llama.cpp's")
    if args.fixture:
        args.fixture.parent.mkdir(parents=True, exist_ok=True)
        args.fixture.write_text(json.dumps(fixture, ensure_ascii=True, separators=(",", ":")) + "\n")
    write_json(args.json, "tokenizer_agreement", {
        "model": args.model.name, "strings": args.count, "rules": list(fixture), "different": different,
        "seconds": seconds, "llama_cpp_python": theirs[True]["version"]})
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
