import torch

ATTRIBUTES: dict = {}


def run(qkv, q_norm, k_norm, position, slot, cos, sin, k_cache, v_cache, eps):
    kv_heads, page, d = v_cache.shape[1:]
    heads = qkv.to(torch.float64).reshape(len(qkv), -1, d)
    v, before = heads[:, -kv_heads:], heads[:, :-kv_heads]
    normed = before / torch.sqrt(before.pow(2).mean(dim=-1, keepdim=True) + eps)
    count = normed.shape[1] - kv_heads
    normed[:, :count] *= q_norm.to(torch.float64)
    normed[:, count:] *= k_norm.to(torch.float64)
    c, s = (table.to(torch.float64)[position.long()][:, None] for table in (cos, sin))
    neox = ATTRIBUTES["style"] == "neox"
    first, second = (slice(0, d // 2), slice(d // 2, d)) if neox else (slice(0, d, 2), slice(1, d, 2))
    a, b = normed[..., first], normed[..., second]
    turned = torch.empty_like(normed)
    turned[..., first], turned[..., second] = a * c - b * s, a * s + b * c
    k_new, v_new = k_cache.clone(), v_cache.clone()
    for t, at in enumerate(slot.tolist()):
        if at >= 0:  # a negative slot: nothing is written
            k_new[at // page, :, :, at % page] = turned[t, -kv_heads:].to(torch.float32).to(k_cache.dtype)
            v_new[at // page, :, at % page] = v[t].to(torch.float32).to(v_cache.dtype)
    return turned[:, :-kv_heads].reshape(len(qkv), -1).to(qkv.dtype), k_new, v_new
