"""Runs in llama.cpp's own environment: JSON {model, strings, special} on stdin, JSON {version, ids} on stdout.

Needs nothing but llama-cpp-python; kforge is not importable here.
"""

import json
import sys

import llama_cpp

request = json.load(sys.stdin)
llama = llama_cpp.Llama(request["model"], vocab_only=True, verbose=False)
ids = [llama.tokenize(text.encode(), add_bos=False, special=request["special"]) for text in request["strings"]]
json.dump({"version": llama_cpp.__version__, "ids": ids}, sys.stdout)
