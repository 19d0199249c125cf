#!/usr/bin/env python3
"""The training step of `bench step --mixer sdpa` in eager PyTorch: forward, backward, AdamW.

Prints CSV for `bench step --against`: the step's median and least time in milliseconds, the most memory that the
process has held, and what it held before there was a model: the interpreter and PyTorch's libraries. The sizes must be
those that `bench step` was given. The model is the same: pre-norm blocks, learned positions, tied embeddings, tanh
GELU, and, as `train` has it by default, no biases. Queries, keys and values come from one projection, as PyTorch users
write it.
"""
import argparse
import math
import resource
import statistics
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.heads, self.fused = o.heads, o.attention == "fused"
        self.norm1 = nn.LayerNorm(o.width, bias=o.bias)
        self.norm2 = nn.LayerNorm(o.width, bias=o.bias)
        self.qkv = nn.Linear(o.width, 3 * o.width, bias=o.bias)
        self.out = nn.Linear(o.width, o.width, bias=o.bias)
        self.up = nn.Linear(o.width, 4 * o.width, bias=o.bias)
        self.down = nn.Linear(4 * o.width, o.width, bias=o.bias)
        if not self.fused:
            hidden = torch.ones(o.context, o.context, dtype=torch.bool).triu(1)
            self.register_buffer("hidden", hidden)

    def attention(self, q, k, v):
        if self.fused:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        T = q.shape[-2]
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
        return F.softmax(scores.masked_fill(self.hidden[:T, :T], float("-inf")), dim=-1) @ v

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = (t.view(B, T, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(D, dim=2))
        mixed = self.attention(q, k, v).transpose(1, 2).reshape(B, T, D)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class LanguageModel(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(o.vocabulary, o.width), nn.Embedding(o.context, o.width)
        self.blocks = nn.ModuleList(Block(o) for _ in range(o.layers))
        self.norm = nn.LayerNorm(o.width, bias=o.bias)
        self.head = nn.Linear(o.width, o.vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = {"layers": 6, "width": 384, "heads": 6, "context": 256, "batch": 16, "vocabulary": 65, "threads": 1}
    for name, value in defaults.items():
        parser.add_argument("--" + name, type=int, default=value, help=f"default {value}")
    parser.add_argument("--seconds", type=float, default=8, help="to measure for; default 8")
    parser.add_argument("--attention", choices=["fused", "composed"], default="fused",
                        help="F.scaled_dot_product_attention, or products and softmax; default fused")
    parser.add_argument("--adamw", choices=["fused", "foreach", "plain"], default="fused",
                        help="form of the optimiser; default fused")
    parser.add_argument("--bias", action="store_true", help="biases in all linear layers and norms")
    parser.add_argument("--clip", type=float, default=0, help="largest gradient norm; default 0, no clipping")
    parser.add_argument("--bf16", action="store_true", help="torch.autocast to bfloat16")
    parser.add_argument("--compile", action="store_true", help="torch.compile, warmed up before it is timed")
    return parser.parse_args()


def process_peak_bytes():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main():
    o = arguments()
    start_bytes = process_peak_bytes()
    torch.set_num_threads(o.threads)
    torch.manual_seed(0)
    model = LanguageModel(o)
    form = {"fused": {"fused": True}, "foreach": {"foreach": True}, "plain": {"foreach": False}}[o.adamw]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **form)
    loss_of = torch.compile(model) if o.compile else model

    def step():
        ids, targets = torch.randint(0, o.vocabulary, (2, o.batch, o.context))
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=o.bf16):
            loss = loss_of(ids, targets)
        loss.backward()
        if o.clip > 0:
            nn.utils.clip_grad_norm_(model.parameters(), o.clip)
        optimizer.step()
        return loss.item()

    for _ in range(2):
        step()
    times, end = [], time.perf_counter() + o.seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        step()
        times.append(1e3 * (time.perf_counter() - start))
    print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads", file=sys.stderr)
    print("figure,ms,best_ms,peak_bytes,start_bytes")
    print(f"step,{statistics.median(times):.3f},{min(times):.3f},{process_peak_bytes()},{start_bytes}")


if __name__ == "__main__":
    main()
