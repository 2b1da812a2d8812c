"""Definitions in FlashInfer-Bench's form, one for everything that an import has to tell apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Document = dict[str, Any]


def definition(
    name: str, op_type: str, axes: dict[str, int | None], inputs: dict, outputs: dict, body: str
) -> Document:
    """``axes``: None for var; tensors as (axes or None, dtype); ``body``: of run(), four spaces in front."""

    def tensors(given: dict) -> Document:
        return {
            n: {"shape": shape if shape is None else shape.split(), "dtype": dtype}
            for n, (shape, dtype) in given.items()
        }

    return {
        "name": name,
        "op_type": op_type,
        "axes": {n: {"type": "var"} if v is None else {"type": "const", "value": v} for n, v in axes.items()},
        "inputs": tensors(inputs),
        "outputs": tensors(outputs),
        "reference": f"import math\nimport torch\n\n\n@torch.no_grad()\ndef run({', '.join(inputs)}):\n{body}\n",
    }


def norm(
    name: str,
    dtype: str = "bfloat16",
    residual: bool = False,
    both: bool = False,
    scale: str = "w",
    eps: str = "1e-6",
    eps_input: bool = False,
) -> Document:
    inputs = {"hidden": ("tokens width", dtype), "w": ("width", dtype)}
    outputs = {"normed": ("tokens width", dtype)}
    if residual:
        inputs["residual"] = ("tokens width", dtype)
    if eps_input:
        inputs["eps"] = (None, "float32")
    if both:
        outputs["residual_sum"] = ("tokens width", dtype)
    total = "hidden.float() + residual.float()" if residual else "hidden.float()"
    body = (
        f"    assert hidden.shape[1] == 2048\n    h = {total}\n    w = w.float()\n"
        f"    r = torch.rsqrt((h * h).mean(-1, keepdim=True) + {'eps' if eps_input else eps})\n"
        f"    out = (h * r * ({scale})).to(hidden.dtype)\n"
        f"    return {'out, h.to(hidden.dtype)' if both else 'out'}"
    )
    return definition(name, "rmsnorm", {"tokens": None, "width": 2048}, inputs, outputs, body)


def gemm(name: str, dtype: str = "float16", bias: bool = False, b: str = "N K") -> Document:
    inputs = {"A": ("M K", dtype), "B": (b, dtype)}
    if bias:
        inputs["bias"] = ("N", dtype)
    product = "A @ B.T" if b == "N K" else "A @ B"
    return definition(
        name,
        "gemm",
        {"M": None, "N": 640, "K": 512},
        inputs,
        {"C": ("M N", dtype)},
        f"    return {product}{' + bias' if bias else ''}",
    )


def swiglu(name: str, gate_first: bool = True) -> Document:
    gate, up = ("a", "b") if gate_first else ("b", "a")
    body = f"    a, b = x.float().chunk(2, dim=-1)\n    return (torch.sigmoid({gate}) * {gate} * {up}).to(x.dtype)"
    return definition(
        name,
        "silu_and_mul",
        {"n": None, "d": 96, "two_d": 192},
        {"x": ("n two_d", "bfloat16")},
        {"y": ("n d", "bfloat16")},
        body,
    )


def rows(name: str, vocabulary: int | None, index: str = "int64") -> Document:
    op_type = "embedding" if vocabulary else "gather_rows"
    return definition(
        name,
        op_type,
        {"n": None, "v": vocabulary, "h": 128},
        {"ids": ("n", index), "table": ("v h", "float32" if vocabulary is None else "bfloat16")},
        {"out": ("n h", "float32" if vocabulary is None else "bfloat16")},
        "    return table[ids.long()]",
    )


def argmax(name: str) -> Document:
    return definition(
        name,
        "argmax",
        {"n": None, "v": 1000},
        {"logits": ("n v", "float32")},
        {"best": ("n", "int64")},
        "    return (logits == logits.max(-1, keepdim=True).values).int().argmax(-1)",
    )


_ATTENTION = """\
    group = q.shape[1] // k.shape[1]
    out, lse = torch.zeros_like(q), torch.zeros(q.shape[:2])
    for s in range(len(kv_indptr) - 1):
        first, last = STARTS
        tokens = TOKENS
        keys, values = k[tokens].float(), v[tokens].float()
        for i in range(first, last):
            seen = SEEN
            for h in range(q.shape[1]):
                scores = sm_scale * (keys[:seen, h // group] @ q[i, h].float())
                lse[i, h] = torch.logsumexp(scores, 0) / math.log(2)
                out[i, h] = (torch.softmax(scores, 0) @ values[:seen, h // group]).to(q.dtype)
    return RESULT"""


def attention(
    name: str, page: int, prefill: bool = False, causal: bool = True, last: bool = False, lse: bool = True
) -> Document:
    """``page`` 0: a contiguous cache. ``last``: with the length of each last page, else all pages are full."""
    heads = {"Hq": 4, "Hkv": 2, "D": 32}
    cache = "pages P Hkv D" if page else "total_kv Hkv D"
    inputs = {"q": ("total_q Hq D", "bfloat16")}
    inputs |= {n: (cache, "bfloat16") for n in (("k_cache", "v_cache") if page else ("k", "v"))}
    if prefill:
        inputs["qo_indptr"] = ("len_indptr", "int32")
    inputs["kv_indptr"] = ("len_indptr", "int32")
    if page:
        inputs["kv_indices"] = ("num_kv_indices", "int32")
    if last:
        inputs["kv_last_page_len"] = ("batch", "int32")
    inputs["sm_scale"] = (None, "float32")
    outputs = {"output": ("total_q Hq D", "bfloat16")} | ({"lse": ("total_q Hq", "float32")} if lse else {})
    flat = "    k, v = k_cache.flatten(0, 1), v_cache.flatten(0, 1)\n" if page else ""
    short = f" - ({page} - int(kv_last_page_len[s]))" if last else ""
    paged = (
        f"(kv_indices[kv_indptr[s]:kv_indptr[s + 1], None].long() * {page} + torch.arange({page})).flatten()"
        f"[:int(kv_indptr[s + 1] - kv_indptr[s]) * {page}{short}]"
    )
    body = _ATTENTION.replace("STARTS", "qo_indptr[s:s + 2].tolist()" if prefill else "(s, s + 1)")
    body = body.replace("TOKENS", paged if page else "torch.arange(int(kv_indptr[s]), int(kv_indptr[s + 1]))")
    body = body.replace("SEEN", "len(tokens) - (last - 1 - i)" if causal else "len(tokens)")
    body = flat + body.replace("RESULT", "out, lse" if lse else "out")
    axes = {"total_q": None, **heads, "len_indptr": None}
    axes |= {"pages": None, "P": page, "num_kv_indices": None} if page else {"total_kv": None}
    axes |= {"batch": None} if last else {}
    return definition(name, "gqa_paged" if page else "gqa_ragged", axes, inputs, outputs, body)


def write(folder: Path, documents: list[Document], workloads: dict[str, list[Document]] | None = None) -> Path:
    """A dataset of definitions with workloads (axes, and inputs where they are not random or scalars)."""
    types = {d["name"]: d["op_type"] for d in documents}
    for document in documents:
        file = folder / "definitions" / document["op_type"] / f"{document['name']}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(document))
    for name, lines in (workloads or {}).items():
        file = folder / "workloads" / types[name] / f"{name}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(
            "".join(
                json.dumps({"definition": name, "workload": line, "solution": None, "evaluation": None}) + "\n"
                for line in lines
            )
        )
    return folder


def workload(number: str, axes: dict[str, int], **inputs: Document) -> Document:
    return {"uuid": number, "axes": axes, "inputs": inputs}
