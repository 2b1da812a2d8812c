import torch

ATTRIBUTES: dict = {}


def run(q, k_cache, v_cache, block_table, query_start, context, *more):
    *sinks, scale = more
    window = ATTRIBUTES.get("window", 0)
    kv_heads, page, d = v_cache.shape[1:]
    queries = q.to(torch.float64).reshape(len(q), kv_heads, -1, d)
    out = torch.zeros_like(queries)
    for s, length in enumerate(context.tolist()):
        first, last = query_start[s : s + 2].tolist()
        for i in range(first, last):
            end = length - (last - i) + 1
            seen = torch.arange(max(end - window, 0) if window else 0, end)
            pages, slots = block_table[s, seen // page].long(), seen % page
            k, v = (part.to(torch.float64) for part in (k_cache[pages, :, :, slots], v_cache[pages, :, slots]))
            scores = scale * torch.einsum("hgd,jhd->hgj", queries[i], k)
            if sinks:
                scores = torch.cat([scores, sinks[0].to(torch.float64).reshape(kv_heads, -1, 1)], dim=-1)
            weights = torch.softmax(scores, dim=-1)[..., : len(seen)]
            out[i] = torch.einsum("hgj,jhd->hgd", weights, v)
    return out.reshape(q.shape).to(q.dtype)
