from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import regex
from tokenizers import Tokenizer as Backend

from kforge.core.errors import KforgeError
from kforge.models import load
from kforge.models.chat import ChatTemplate, Message
from kforge.models.gguf_tokenizer import tokenizer_of
from kforge.models.json_tokenizer import tokenizer_of as folder_tokenizer
from kforge.models.pretokenizers import RULES
from kforge.models.tokenizer import Tokenizer

CASES = json.loads((Path(__file__).parent / "fixtures" / "llama_cpp_ids.json").read_text())


@pytest.mark.parametrize("rule", CASES)
def test_ids_are_those_of_llama_cpp(smollm2, rule):
    header = replace(smollm2.header, fields={**smollm2.header.fields, "tokenizer.ggml.pre": rule})
    tokenizer = tokenizer_of(smollm2.path, header, smollm2.config)
    for case in CASES[rule]:
        assert tokenizer.encode(case["text"], add_bos=False, parse_special=True) == case["ids"], case["text"]


def test_special_tokens_are_text_unless_asked_for(smollm2):
    tokenizer = smollm2.tokenizer
    assert tokenizer.encode("<|im_end|>", parse_special=True) == [2]
    assert 2 not in tokenizer.encode("<|im_end|>")
    assert tokenizer.decode(tokenizer.encode("a<|im_end|>b")) == "a<|im_end|>b"
    assert tokenizer.decode([2]) == "" and tokenizer.decode([2], show_special=True) == "<|im_end|>"


def test_beginning_of_sequence_follows_the_file(smollm2, tiny):
    llama = load(tiny("q4_0"))
    assert llama.tokenizer.encode("hi")[0] == llama.config.bos_id
    assert llama.tokenizer.encode("hi", add_bos=False)[0] != llama.config.bos_id
    assert smollm2.tokenizer.encode("hi")[0] != smollm2.config.bos_id
    assert smollm2.tokenizer.encode("hi", add_bos=True)[0] == smollm2.config.bos_id


def test_a_conversation_has_one_beginning(tiny):
    llama = load(tiny("q4_0"))
    ids = llama.tokenizer.encode_chat([Message("user", "hi")])
    assert ids.count(llama.config.bos_id) == 1 and ids[0] == llama.config.bos_id


@pytest.mark.parametrize("text", ["Größe 日本語 👩‍👩‍👧‍👦 é", "plain", "", "नमस्ते\n\t end"])
def test_streamed_text_is_the_whole_text_and_never_half_a_character(smollm2, text):
    tokenizer = smollm2.tokenizer
    stream = tokenizer.detokenizer()
    pieces = [stream.push(i) for i in tokenizer.encode(text)]
    assert all("\ufffd" not in piece for piece in pieces)
    assert "".join(pieces) + stream.flush() == text == tokenizer.decode(tokenizer.encode(text))


def test_an_unfinished_character_at_the_end_becomes_a_replacement(smollm2):
    tokenizer = smollm2.tokenizer
    ids = tokenizer.encode("👩")
    stream = tokenizer.detokenizer()
    assert "".join(stream.push(i) for i in ids[:-1]) == ""
    assert stream.flush() == "\ufffd"


def test_the_chat_template_of_the_file(smollm2):
    ids = smollm2.tokenizer.encode_chat([Message("system", "Be brief."), Message("user", "Hi")])
    assert smollm2.tokenizer.decode(ids, show_special=True) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_a_model_without_a_template_says_so(smollm2):
    with pytest.raises(KforgeError, match="no chat template"):
        replace(smollm2.tokenizer, chat=None).encode_chat([Message("user", "Hi")])


@pytest.mark.parametrize("source", [
    "{{ messages.__class__.__mro__ }}", "{% set _ = messages.append(1) %}", "{{ raise_exception('no') }}",
    "{{ 1 / 0 }}", "{{ undefined_function() }}", "{{ ''.__class__.__base__.__subclasses__() }}",
])
def test_a_hostile_or_broken_template_is_refused(source):
    template = ChatTemplate(source, "m.gguf")
    with pytest.raises(KforgeError, match=r"m\.gguf"):
        template.render([Message("user", "x")])


def test_templates_may_use_what_published_ones_do():
    """Namespaces, slices, tests for what was not given, and methods of texts."""
    source = (
        "{%- set state = namespace(last=-1) -%}"
        "{%- for m in messages[::-1] -%}{%- if state.last < 0 and m.role == 'user' -%}"
        "{%- set state.last = messages|length - 1 - loop.index0 -%}{%- endif -%}{%- endfor -%}"
        "{%- if tools -%}tools{%- endif -%}"
        "{%- for m in messages -%}{%- if m.content is string and m.reasoning is not string -%}"
        "<{{ m.role }}{{ '!' if loop.index0 == state.last }}>{{ m.content.split('</think>')[-1].lstrip('\n') }}"
        "{%- endif -%}{%- endfor -%}"
        "{%- if enable_thinking is defined and enable_thinking is false -%}<no thoughts>{%- endif -%}")
    template = ChatTemplate(source, "m.gguf")
    turns = [Message("user", "a"), Message("assistant", "<think>why</think>\n\nb"), Message("user", "c")]
    assert template.render(turns) == "<user>a<assistant>b<user!>c"
    assert template.render(turns, enable_thinking=False).endswith("<no thoughts>")


def test_a_template_that_does_not_parse_is_refused():
    with pytest.raises(KforgeError, match="does not parse"):
        ChatTemplate("{% if %}", "m.gguf")


@pytest.mark.parametrize(("fields", "words"), [
    ({"tokenizer.ggml.pre": "klingon"}, "klingon"),
    ({"tokenizer.ggml.model": "bert"}, "bert"),
    ({"tokenizer.ggml.merges": None}, "merges"),
    ({"tokenizer.ggml.merges": ["zz zz zz"]}, "merges"),
    ({"tokenizer.ggml.tokens": ["a"]}, "tokens"),
    ({"tokenizer.ggml.model": "llama"}, "scores"),
])
def test_a_tokenizer_that_cannot_be_built_is_named(tiny, fields, words):
    model = load(tiny("q4_0"))
    with pytest.raises(KforgeError, match=words):
        tokenizer_of(model.path, replace(model.header, fields={**model.header.fields, **fields}), model.config)


def test_o200k_cuts_at_capitals_and_keeps_contractions():
    pattern, = RULES["gpt-4o"].patterns
    text = "HelloWorld's  12345 ÉTÉ i/o//\n\n x"
    assert regex.findall(pattern, text) == [
        "Hello", "World's", " ", " ", "123", "45", " ÉTÉ", " i", "/o", "//\n\n", " x"]


def test_sentence_piece_merges_by_score_and_falls_back_to_bytes(tiny):
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "\u2581", "a", "b", "ab", "\u2581ab", "ba"]
    fields = {
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.scores": [0.0] * 259 + [-9.0, -9.0, -9.0, -2.0, -3.0, -1.0],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * 6,
    }
    model = load(tiny("q4_0"))
    config = replace(model.config, vocab=len(texts), bos_id=1, eos_id=2, chat_template=None)
    tokenizer = tokenizer_of(model.path, replace(model.header, fields={**fields}), config)
    named = [texts[i] for i in tokenizer.encode("aba é</s>", parse_special=True)]
    assert named == ["<s>", "\u2581", "a", "ba", "\u2581", "<0xC3>", "<0xA9>", "</s>"]
    assert tokenizer.decode(tokenizer.encode("ab é b", add_bos=False)) == "ab é b"


def test_a_folder_s_tokenizer_gives_the_ids_of_its_json(smollm2, tmp_path):
    backend: Backend = smollm2.tokenizer.encoder._backend
    backend = Backend.from_str(backend.to_str())
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer: Tokenizer = folder_tokenizer(tmp_path, smollm2.config)
    for text in ["Hello, world! 123", "don't", "日本語 👩", "a<|im_end|>b"]:
        for special in (False, True):
            wanted = smollm2.tokenizer.encode(text, parse_special=special)
            assert tokenizer.encode(text, parse_special=special) == wanted
        assert tokenizer.decode(tokenizer.encode(text)) == text
