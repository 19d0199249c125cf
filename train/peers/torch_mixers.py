#!/usr/bin/env python3
"""The cores of `bench mixers` in eager PyTorch, forward and backward: queries, keys and values given, no projections.

Prints CSV for `bench mixers --against`, with the names of its figures. The chunkwise forms are those that one writes
in PyTorch: all chunks at once by batched products, and, for the delta rule, a loop over chunks with a triangular
solve. Before anything is timed they are held against token-by-token recurrences.
"""
import argparse
import math
import resource
import statistics
import sys
import time

import torch
import torch.nn.functional as F


def sdpa(x, chunk):
    return F.scaled_dot_product_attention(x["q"], x["k"], x["v"], is_causal=True)


def sdpa_composed(x, chunk):
    T, d = x["q"].shape[-2:]
    scores = (x["q"] @ x["k"].transpose(-2, -1)) / math.sqrt(d)
    hidden = torch.ones(T, T, dtype=torch.bool).triu(1)
    return F.softmax(scores.masked_fill(hidden, float("-inf")), -1) @ x["v"]


def responsibilities(x, mean, log_deviation, log_prior):
    """[B, H, T, d] under [H, K, d]: softmax over K of log prior + log N(x; mean, diag exp(2 log_deviation))."""
    precision = torch.exp(-2 * log_deviation)
    scores = -0.5 * (x * x) @ precision.transpose(-1, -2) + x @ (mean * precision).transpose(-1, -2)
    constant = log_prior - 0.5 * (mean * mean * precision).sum(-1) - log_deviation.sum(-1)
    return F.softmax(scores + constant.unsqueeze(-2), dim=-1)


def normalised_recurrence(q, k, v, chunk):
    """sum over s <= t of (q_t . k_s) v_s over the sum of the weights, chunk by chunk."""
    B, H, T, d = v.shape
    extended = torch.cat([v, torch.ones(B, H, T, 1)], -1)
    q, k, v1 = (t.reshape(B, H, T // chunk, chunk, -1) for t in (q, k, extended))
    states = k.transpose(-1, -2) @ v1
    before = torch.cumsum(states, 2) - states
    o = (q @ before + (q @ k.transpose(-1, -2)).tril() @ v1).reshape(B, H, T, d + 1)
    return o[..., :d] / (o[..., d:] + 1e-6)


def gma(x, chunk):
    mixture = x["mean"], x["log_deviation"], x["log_prior"]
    return normalised_recurrence(responsibilities(x["q"], *mixture), responsibilities(x["k"], *mixture), x["v"], chunk)


def linear(x, chunk):
    return normalised_recurrence(F.elu(x["q"]) + 1, F.elu(x["k"]) + 1, x["v"], chunk)


def delta(x, chunk):
    B, H, T, d = x["v"].shape
    q, k = x["q"] / math.sqrt(d), F.normalize(x["k"], dim=-1)
    q, k, v = (t.reshape(B, H, T // chunk, chunk, d) for t in (q, k, x["v"]))
    beta = torch.sigmoid(x["beta"]).reshape(B, H, T // chunk, chunk, 1)
    A = torch.eye(chunk) + (beta * k @ k.transpose(-1, -2)).tril(-1)
    WU = torch.linalg.solve_triangular(A, beta * torch.cat([k, v], -1), upper=False, unitriangular=True)
    W, U = WU.split(d, -1)
    P = (q @ k.transpose(-1, -2)).tril()
    S, out = torch.zeros(B, H, d, d), []
    # unbind: its backward is one stack, where indexing would fill a gradient with zeros for each chunk
    for w, u, qi, ki, p in zip(*(t.unbind(2) for t in (W, U, q, k, P))):
        residual = u - w @ S
        out.append(qi @ S + p @ residual)
        S = S + ki.transpose(-1, -2) @ residual
    return torch.stack(out, 2).reshape(B, H, T, d)


def gated_delta(x, chunk):
    B, H, T, d = x["v"].shape
    q, k = x["q"] / math.sqrt(d), F.normalize(x["k"], dim=-1)
    q, k, v = (t.reshape(B, H, T // chunk, chunk, d) for t in (q, k, x["v"]))
    beta = torch.sigmoid(x["beta"]).reshape(B, H, T // chunk, chunk, 1)
    b = F.logsigmoid(x["gate"]).reshape(B, H, T // chunk, chunk).cumsum(-1)
    lower = torch.ones(chunk, chunk, dtype=torch.bool).tril()
    decay = (b.unsqueeze(-1) - b.unsqueeze(-2)).masked_fill(~lower, float("-inf")).exp()
    A = torch.eye(chunk) + (beta * k @ k.transpose(-1, -2) * decay).tril(-1)
    grown = b.exp().unsqueeze(-1)
    WU = torch.linalg.solve_triangular(A, beta * torch.cat([k * grown, v], -1), upper=False, unitriangular=True)
    W, U = WU.split(d, -1)
    P = q @ k.transpose(-1, -2) * decay
    reading, writing = q * grown, k * (b[..., -1:] - b).exp().unsqueeze(-1)
    kept = b[..., -1].exp().reshape(B, H, -1, 1, 1)
    S, out = torch.zeros(B, H, d, d), []
    for w, u, r, kw, p, g in zip(*(t.unbind(2) for t in (W, U, reading, writing, P, kept))):
        residual = u - w @ S
        out.append(r @ S + p @ residual)
        S = g * S + kw.transpose(-1, -2) @ residual
    return torch.stack(out, 2).reshape(B, H, T, d)


def by_token(x, delta_rule, gated):
    """The recurrence itself, for checking: S = decay S + k^T u, o = q S."""
    B, H, T, d = x["v"].shape
    q, k, v = x["q"] / math.sqrt(d), F.normalize(x["k"], dim=-1), x["v"]
    beta, decay = torch.sigmoid(x["beta"]), torch.sigmoid(x["gate"])
    S, out = torch.zeros(B, H, d, d), []
    for t in range(T):
        if gated:
            S = S * decay[:, :, t, None, None]
        row = k[:, :, t].unsqueeze(-2)
        update = v[:, :, t].unsqueeze(-2)
        if delta_rule:
            update = beta[:, :, t, None, None] * (update - row @ S)
        S = S + row.transpose(-1, -2) @ update
        out.append((q[:, :, t].unsqueeze(-2) @ S).squeeze(-2))
    return torch.stack(out, 2)


def gma_by_token(x):
    mixture = x["mean"], x["log_deviation"], x["log_prior"]
    q, k = responsibilities(x["q"], *mixture), responsibilities(x["k"], *mixture)
    S = torch.cumsum(k.unsqueeze(-1) * x["v"].unsqueeze(-2), dim=2)
    z = torch.cumsum(k, dim=2)
    return (q.unsqueeze(-2) @ S).squeeze(-2) / ((q * z).sum(-1, keepdim=True) + 1e-6)


CORES = {"sdpa": sdpa, "sdpa_composed": sdpa_composed, "gma": gma, "linear": linear, "delta": delta,
         "gated_delta": gated_delta}


def inputs(o, T):
    def normal(*shape, deviation=1.0):
        return (deviation * torch.randn(*shape)).requires_grad_()

    B, H, d, K = o.batch, o.heads, o.head_size, o.components
    return {"q": normal(B, H, T, d), "k": normal(B, H, T, d), "v": normal(B, H, T, d), "beta": normal(B, H, T),
            "gate": normal(B, H, T), "mean": normal(H, K, d), "log_deviation": normal(H, K, d, deviation=0.1),
            "log_prior": normal(H, K, deviation=0.1)}


def check(o):
    x = inputs(o, 2 * o.chunk)
    for name, reference in {"gma": gma_by_token(x), "delta": by_token(x, True, False),
                            "gated_delta": by_token(x, True, True), "sdpa": sdpa_composed(x, o.chunk)}.items():
        if not torch.allclose(CORES[name](x, o.chunk), reference, atol=1e-4):
            sys.exit(f"{name} disagrees with its definition")


def measure(function, x, o):
    """Milliseconds of each call, forward and backward; the first two warm up."""
    times, end = [], time.perf_counter() + o.seconds
    while len(times) < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        function(x, o.chunk).sum().backward()
        times.append(1e3 * (time.perf_counter() - start))
        for value in x.values():
            value.grad = None
    return times[2:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = {"threads": 1, "batch": 1, "heads": 6, "head-size": 64, "components": 128, "chunk": 64}
    for name, value in defaults.items():
        parser.add_argument("--" + name, type=int, default=value, help=f"default {value}")
    parser.add_argument("--lengths", default="256,512,1024,2048,4096", help="multiples of --chunk")
    parser.add_argument("--cores", default="sdpa,gma,linear,delta,gated_delta", help="of " + ", ".join(CORES))
    parser.add_argument("--seconds", type=float, default=1, help="for each figure; default 1")
    o = parser.parse_args()
    torch.set_num_threads(o.threads)
    torch.manual_seed(0)
    check(o)
    print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads", file=sys.stderr)
    print("figure,ms,best_ms,peak_bytes")
    for T in map(int, o.lengths.split(",")):
        for name in o.cores.split(","):
            times = measure(CORES[name], inputs(o, T), o)
            peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            figure = f"core {name.removesuffix('_composed')} T={T}"
            print(f"{figure},{statistics.median(times):.3f},{min(times):.3f},{peak}", flush=True)


if __name__ == "__main__":
    main()
