"""The operators that look up and move the rows of drafted and accepted tokens in the KV cache.

Names and arguments are those of SGLang's calls. A request's row of `req_to_token` [requests,
pool_len] lists the cache rows of its tokens; the argument `pool_len` is not used.
"""

import ctypes

import torch
from torch import Tensor


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Write new cache rows into `req_to_token`: for each request, into its columns from start to
    end.

    `req_pool_indices`, `start_offset` and `end_offset` are [batch]; `out_cache_loc` holds the
    requests' new rows one request after the other.
    """
    requests, columns = _stretches(req_pool_indices, start_offset, end_offset)
    req_to_token[requests, columns] = out_cache_loc[: columns.shape[0]].to(req_to_token.dtype)


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """The reverse: read those columns into `out_cache_loc`, one request after the other; its rest
    is unchanged.
    """
    requests, columns = _stretches(req_pool_indices, start_offset, end_offset)
    out_cache_loc[: columns.shape[0]] = req_to_token[requests, columns]


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """The rows that drafting may write, into `out_cache_loc` [batch * topk * num_steps].

    They are each request's columns right behind its `seq_lens` [batch] tokens, branch by branch.
    """
    columns = seq_lens.view(-1, 1) + torch.arange(topk * num_steps)
    rows = req_to_token.index_select(0, req_pool_indices).gather(1, columns.to(torch.int64))
    out_cache_loc.copy_(rows.view(-1))


def build_draft_decode_metadata_cpu(
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> Tensor:
    """A table of cache rows for the branches of a draft, like `req_to_token` for requests.

    Branch t of request b, in line b * topk + t, sees the request's `seq_lens[b]` tokens and then
    its own `num_steps`. Returns [batch * topk, width], only as wide as the longest branch: writing
    lines of full length would take longer than a small model's step.
    """
    batch = req_pool_indices.shape[0]
    prefix = int(seq_lens.max()) if batch else 0
    table = req_to_token[:, : prefix + topk * num_steps].index_select(0, req_pool_indices)
    if topk == 1:
        return table
    first = (seq_lens.view(-1, 1, 1) + torch.arange(num_steps)).to(torch.int64)
    branch = torch.arange(topk).view(1, -1, 1) * num_steps
    own = table.gather(1, (first + branch).view(batch, -1)).view(batch * topk, num_steps)
    lines = table[:, : prefix + num_steps].repeat_interleave(topk, dim=0)
    return lines.scatter_(1, first.expand(-1, topk, -1).reshape(batch * topk, num_steps), own)


def fill_accept_out_cache_loc_cpu(
    accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor
) -> None:
    """Write the cache rows of accepted tokens, side by side, into `accept_out_cache_loc`; its rest
    is unchanged.

    `accept_index`, of any shape, numbers tokens of the step, -1 where a request accepted no more;
    `out_cache_loc` [tokens] has their rows.
    """
    accepted = accept_index.view(-1)
    accepted = accepted[accepted >= 0]
    accept_out_cache_loc[: accepted.shape[0]] = out_cache_loc.index_select(0, accepted)


def copy_all_layer_kv_cache_cpu(
    data_ptrs: Tensor, strides: Tensor, tgt_loc: Tensor, src_loc: Tensor
) -> None:
    """Copy rows `src_loc` to rows `tgt_loc` in the caches of all layers, as if all were read before
    any is written.

    `data_ptrs` has each cache's address, `strides` the bytes of one row of it. A draft with one
    branch has its accepted tokens in their place already: nothing moves then.
    """
    moved = tgt_loc != src_loc
    if not bool(moved.any()):
        return
    source = src_loc[moved].to(torch.int64)
    target = tgt_loc[moved].to(torch.int64)
    rows = int(torch.maximum(source.max(), target.max())) + 1
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        memory = (ctypes.c_uint8 * (rows * stride)).from_address(address)
        cache = torch.frombuffer(memory, dtype=torch.uint8).view(rows, stride)
        cache.index_copy_(0, target, cache.index_select(0, source))


def _stretches(requests: Tensor, start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """Every cell from `start` to `end` of each request: its request and its column, int64."""
    lengths = (end - start).to(torch.int64)
    before = lengths.cumsum(0) - lengths
    shift = torch.repeat_interleave(start - before, lengths)
    return torch.repeat_interleave(requests, lengths), torch.arange(shift.shape[0]) + shift
