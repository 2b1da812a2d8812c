import torch

ATTRIBUTES: dict = {}


def run(q, k_cache, v_cache, block_table, query_start, context, scale):
    kv_heads, page, d = v_cache.shape[1:]
    queries = q.to(torch.float64).reshape(len(q), kv_heads, -1, d)
    out = torch.zeros_like(queries)
    for s, length in enumerate(context.tolist()):
        first, last = query_start[s : s + 2].tolist()
        pages = block_table[s, : -(-length // page)].long()
        k = k_cache[pages].to(torch.float64).permute(1, 0, 3, 2).reshape(kv_heads, -1, d)[:, :length]
        v = v_cache[pages].to(torch.float64).transpose(0, 1).reshape(kv_heads, -1, d)[:, :length]
        for i in range(first, last):
            seen = length - (last - first) + (i - first) + 1
            scores = scale * (queries[i] @ k[:, :seen].transpose(1, 2))
            out[i] = torch.softmax(scores, dim=-1) @ v[:, :seen]
    return out.reshape(q.shape).to(q.dtype)
