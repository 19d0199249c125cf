#!/usr/bin/env python3
"""The whole models of `bench decode` in eager PyTorch: one token after the other, under torch.inference_mode.

Prints CSV for `bench decode --against`, with the names of its figures "model PATTERN after T tokens". Sizes must be
those that `bench decode` was given. The models are the same: pre-norm blocks, no positions, tied embeddings, tanh
GELU, no biases; `sdpa` has a cache with room for all tokens, `gma` its slots. With --products only the matrices are
multiplied, those of all blocks and the head: what decoding can't be faster than in PyTorch.
"""
import argparse
import math
import statistics
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

RUN_TOKENS = 64  # decoded one after the other in one measurement, as bench does


class Sdpa(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.heads, self.size = o.heads, o.width // o.heads
        self.qkv = nn.Linear(o.width, 3 * o.width, bias=False)
        self.out = nn.Linear(o.width, o.width, bias=False)

    def reset(self, capacity):
        self.keys, self.values = torch.zeros(2, 1, self.heads, capacity, self.size)

    def forward(self, x, position):
        T = x.shape[1]
        q, k, v = (t.view(1, T, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        self.keys[:, :, position:position + T], self.values[:, :, position:position + T] = k, v
        keys, values = self.keys[:, :, :position + T], self.values[:, :, :position + T]
        o = F.scaled_dot_product_attention(q, keys, values, is_causal=T > 1)
        return self.out(o.transpose(1, 2).reshape(x.shape))


class Gma(nn.Module):
    """As nn/mixers/gma/gma.md has it; what follows from parameters alone is computed once."""

    def __init__(self, o):
        super().__init__()
        self.heads, H, K, r = o.heads, o.heads, o.components, o.routing
        self.qk = nn.Linear(o.width, 2 * H * r, bias=False)
        self.v = nn.Linear(o.width, o.width, bias=False)
        self.out = nn.Linear(o.width, o.width, bias=False)
        self.shape = (1, H, K, o.width // H)
        mean, variance, log_prior = torch.randn(H, K, r), torch.rand(H, K, r) + 1, torch.zeros(H, K)
        self.precision = (1 / variance).transpose(1, 2).contiguous()  # [H, dr, K]
        self.weighted_mean = (mean / variance).transpose(1, 2).contiguous()
        self.constant = log_prior - 0.5 * (mean * mean / variance + variance.log() + math.log(2 * math.pi)).sum(-1)

    def reset(self, capacity):
        self.slots, self.masses = torch.zeros(self.shape), torch.zeros(self.shape[:3])

    def forward(self, x, position):
        T = x.shape[1]
        routed = F.rms_norm(self.qk(x).view(T, 2, self.heads, -1), (self.qk.out_features // (2 * self.heads),))
        routed = routed.permute(2, 1, 0, 3).flatten(1, 2)  # [H, 2 T, dr]
        scores = routed @ self.weighted_mean - 0.5 * (routed * routed) @ self.precision + self.constant[:, None]
        q, k = F.softmax(scores, -1).view(1, self.heads, 2, T, -1).unbind(2)  # [1, H, T, K]
        v = self.v(x).view(1, T, self.heads, -1).transpose(1, 2)
        read, masses = [], []
        for t in range(T):
            self.slots += k[:, :, t, :, None] * v[:, :, t, None]
            self.masses += k[:, :, t]
            read.append((q[:, :, t, None] @ self.slots).squeeze(-2))
            masses.append((q[:, :, t] * self.masses).sum(-1, keepdim=True))
        o = torch.stack(read, 2) / (torch.stack(masses, 2) + 1e-6)
        return self.out(o.transpose(1, 2).reshape(x.shape))


MIXERS = {"sdpa": Sdpa, "gma": Gma}


class Block(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(o.width, bias=False), nn.LayerNorm(o.width, bias=False)
        self.mixer = MIXERS[o.mixer](o)
        self.up = nn.Linear(o.width, 4 * o.width, bias=False)
        self.down = nn.Linear(4 * o.width, o.width, bias=False)

    def forward(self, x, position):
        x = x + self.mixer(self.norm1(x), position)
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class LanguageModel(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.tokens = nn.Embedding(o.vocabulary, o.width)
        self.blocks = nn.ModuleList(Block(o) for _ in range(o.layers))
        self.norm = nn.LayerNorm(o.width, bias=False)

    def read(self, ids, position):
        """The most probable token behind ids, which stand at `position`."""
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x, position)
        return F.linear(self.norm(x[:, -1:]), self.tokens.weight).argmax(-1)

    def products(self, ids):
        x = self.tokens(ids)
        for block in self.blocks:
            for module in block.mixer.children():
                y = module(x if module.in_features == x.shape[-1] else y)
            block.down(block.up(x))
        return F.linear(x, self.tokens.weight)


def milliseconds(o, run):
    """Of a token, in each of several runs; the first warms up."""
    times, end = [], time.perf_counter() + o.seconds
    while len(times) < 4 or time.perf_counter() < end:
        times.append(run() / RUN_TOKENS)
    return times[1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = {"layers": 6, "width": 384, "heads": 6, "vocabulary": 65, "components": 64, "routing": 16, "threads": 1}
    for name, value in defaults.items():
        parser.add_argument("--" + name, type=int, default=value, help=f"default {value}")
    parser.add_argument("--mixer", choices=list(MIXERS), default="gma", help="of all layers; default gma")
    parser.add_argument("--products", action="store_true", help="only products of the matrices, under the same names")
    parser.add_argument("--lengths", default="1024,4096,16384,65536", help="tokens that have been read")
    parser.add_argument("--seconds", type=float, default=1, help="for each figure; default 1")
    o = parser.parse_args()
    torch.set_num_threads(o.threads)
    torch.manual_seed(0)
    model = LanguageModel(o)
    print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads", file=sys.stderr)
    print("figure,ms,best_ms")
    with torch.inference_mode():
        for T in map(int, o.lengths.split(",")):
            for block in model.blocks:
                block.mixer.reset(T + RUN_TOKENS)
            token = model.read(torch.randint(0, o.vocabulary, (1, T)), 0)

            def run():
                nonlocal token
                start = time.perf_counter()
                for t in range(T, T + RUN_TOKENS):
                    if o.products:
                        model.products(token)
                    else:
                        token = model.read(token, t)
                return 1e3 * (time.perf_counter() - start)

            times = milliseconds(o, run)
            figure = f"model {o.mixer} after {T} tokens"
            print(f"{figure},{statistics.median(times):.3f},{min(times):.3f}", flush=True)


if __name__ == "__main__":
    main()
