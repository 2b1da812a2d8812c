"""Token ids beside llama.cpp's on random Unicode strings.

    python bench/tokenizer_agreement.py MODEL.gguf --peer-python /path/to/venv/bin/python [--count 10000] [--json FILE]

``--peer-python`` is any interpreter that can import ``llama_cpp``. ``--fixture FILE`` writes strings with
llama.cpp's ids for the tests. Ends with 1 when a string differs.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from pathlib import Path

import regex

import kforge.models

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


def peer_ids(python: str, model: Path, strings: list[str], special: bool) -> list[list[int]]:
    """llama.cpp's ids, computed in its own environment."""
    request = json.dumps({"model": str(model.resolve()), "strings": strings, "special": special})
    script = Path(__file__).with_name("peer_tokenize.py")
    done = subprocess.run([python, str(script)], input=request, capture_output=True, text=True, check=True)
    return json.loads(done.stdout[done.stdout.index("["):])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--fixture", type=Path)
    args = parser.parse_args()

    tokenizer = kforge.models.load(args.model).tokenizer
    control = sorted(tokenizer.vocabulary.control)[:8]
    strings = random_strings(args.count, args.seed, [tokenizer.vocabulary.texts[i] for i in control])
    different, seconds = 0, 0.0
    for special in (False, True):
        theirs = peer_ids(args.peer_python, args.model, strings, special)
        start = time.perf_counter()
        ours = [tokenizer.encode(text, add_bos=False, parse_special=special) for text in strings]
        seconds += time.perf_counter() - start
        for text, a, b in zip(strings, ours, theirs, strict=True):
            if a != b:
                different += 1
                if different <= 20:
                    print(f"differs (special={special}): {text!r}\n  kforge    {a}\n  llama.cpp {b}")
        if args.fixture and special:
            cases = [{"text": text, "ids": ids} for text, ids in zip(strings, theirs, strict=True)]
            args.fixture.write_text(json.dumps(cases, ensure_ascii=True, indent=0) + "\n")
    print(f"{args.model.name}: {2 * args.count} encodings of {args.count} strings, {different} differ from llama.cpp's")
    if args.json:
        args.json.write_text(json.dumps({"strings": args.count, "different": different, "seconds": seconds}) + "\n")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
