"""What the lm-eval harness needs to evaluate a GGUF model behind ``kforge serve``, without any network.

    python bench/lm_eval_files.py MODEL.gguf FOLDER     (or smollm2-135m)

Writes FOLDER/tokenizer, which ``transformers`` reads (a GGUF file alone has none that the harness understands), and two
tasks on a text of this repository (bench/data/persuasion.txt) with their data, which name each other by their whole
paths:

  persuasion_next        which of four sentences comes next? The others stand elsewhere in the text (multiple choice)
  persuasion_perplexity  perplexity of the text's paragraphs, by word and byte (rolling log likelihood)

docs/server.md has the commands that follow. Ends with a sentence and code 2 when what was written as tokenizer does not
give the ids that kforge gives.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from pathlib import Path

from tokenizers import AddedToken, Tokenizer

from kforge.core.errors import KforgeError
from kforge.models import load
from kforge.models.fetch import resolve
from kforge.models.model import Model
from kforge.models.tokenizer import PartitioningEncoder

TEXT = Path(__file__).parent / "data" / "persuasion.txt"
PARAGRAPHS, BEFORE = 60, 4  # BEFORE: sentences that a question shows
NEXT = """task: persuasion_next
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{before}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{right}}}}"
target_delimiter: " "
metric_list:
  - metric: acc
  - metric: acc_norm
"""
PERPLEXITY = """task: persuasion_perplexity
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
output_type: loglikelihood_rolling
test_split: test
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list:
  - metric: word_perplexity
  - metric: byte_perplexity
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    try:
        args.folder.mkdir(parents=True, exist_ok=True)
        write_tokenizer(load(resolve(args.model)), args.folder / "tokenizer")
        write_tasks(TEXT.read_text("ascii"), args.folder.resolve())
    except (KforgeError, OSError) as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    print(f"{args.folder}: tokenizer, persuasion_next, persuasion_perplexity")


def write_tokenizer(model: Model, folder: Path) -> None:
    """The model's tokenizer as ``transformers`` reads it. ``KforgeError`` where that would not give the same ids."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    ours = model.tokenizer
    if not isinstance(ours.encoder, PartitioningEncoder) or ours.vocabulary.prefix_space:
        raise KforgeError(f"{model.path}: only byte-level vocabularies of GGUF files can be written; a model in a "
                          "folder has its tokenizer.json there already.")
    backend = Tokenizer.from_str(ours.encoder._backend.to_str())
    pieces, control = ours.vocabulary.texts, ours.vocabulary.control
    for token in sorted(control | ours.vocabulary.literal):
        add = backend.add_special_tokens if token in control else backend.add_tokens
        add([AddedToken(pieces[token], normalized=False, special=token in control)])
    named = {name: pieces[token] for name, token in (("bos_token", ours.bos_id), ("eos_token", ours.eos_id))
             if token is not None}
    PreTrainedTokenizerFast(tokenizer_object=backend, **named).save_pretrained(str(folder))
    theirs = AutoTokenizer.from_pretrained(str(folder))
    for text in (TEXT.read_text("ascii")[:20_000], "don't  stop\n\n\té 日本語 🇩🇪 1234,5", " a"):
        if theirs(text, add_special_tokens=False).input_ids != ours.encode(text, add_bos=False):
            raise KforgeError(f"{model.path}: read by transformers, its tokenizer gives other ids for {text[:40]!r}")


def write_tasks(text: str, folder: Path) -> None:
    """Both tasks, their data beside them, always the same ones."""
    rng = random.Random(0)
    paragraphs = [" ".join(p.split()) for p in text.split("\n\n")]
    whole = [p for p in paragraphs if len(p.split()) >= 40]
    sentences = [re.split(r"(?<=[.!?]) (?=[A-Z])", p) for p in whole]
    places = [(p, s) for p, each in enumerate(sentences) for s in range(BEFORE, len(each))
              if 5 <= len(each[s].split()) <= 40]
    questions = []
    for p, s in rng.sample(places, len(places)):
        others = [sentences[q][t] for q, t in rng.sample([place for place in places if place[0] != p], 3)]
        right = rng.randrange(4)
        choices = [*others[:right], sentences[p][s], *others[right:]]
        questions.append({"before": " ".join(sentences[p][s - BEFORE : s]), "choices": choices, "right": right})
    for name, rows, task in (("next", questions, NEXT), ("perplexity", [{"text": p} for p in whole[:PARAGRAPHS]],
                                                        PERPLEXITY)):
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / f"persuasion_{name}.yaml").write_text(task.format(data=data))


if __name__ == "__main__":
    main()
