"""Runs in llama.cpp's own environment: JSON {model, strings, special} on stdin, JSON list of id lists on stdout.

Needs nothing but llama-cpp-python; kforge is not importable here.
"""

import json
import sys

from llama_cpp import Llama

request = json.load(sys.stdin)
llama = Llama(request["model"], vocab_only=True, verbose=False)
ids = [llama.tokenize(text.encode(), add_bos=False, special=request["special"]) for text in request["strings"]]
json.dump(ids, sys.stdout)
