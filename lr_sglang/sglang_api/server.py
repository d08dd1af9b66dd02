"""What servers on a CPU need of SGLang's insides, beside its command line: hooks, and the objects that hooks are given.

A hook is registered for the name of a Need here, so that what is hooked is what is checked.
"""

from __future__ import annotations

from lr_sglang.sglang_api.need import Need

MENDED = "0.5.16"  # the last tested release that has the faults which some hooks mend

# Starting a server.
LAUNCH = (
    Need("sglang.launch_server.run_server", "runs a server in our launcher", ("server_args",), closed=True),
    Need("sglang.srt.server_args.prepare_server_args", "reads its command line", ("argv",), closed=True),
    Need("sglang.srt.server_args", "its flags are read from the source"),
    Need("sglang.srt.utils.common.kill_process_tree", "ends its processes"),
    Need("sglang.srt.entrypoints.http_server", "is imported before the processes are forked"),
    Need("sglang.srt.managers.scheduler", "is imported before the processes are forked"),
    Need("sglang.srt.managers.detokenizer_manager", "is imported before the processes are forked"),
    Need("sglang.srt.plugins.load_plugins", "installs the hooks before the fork", closed=True),
    Need("sglang.srt.speculative.spec_info.SpeculativeAlgorithm", "names the token layers"),
    Need(
        "sglang.srt.environ.Envs",
        "settings of a server on a CPU",
        fields=("SGLANG_DISABLED_MODEL_ARCHS", "SGLANG_EAGER_INPUT_NO_COPY"),
    ),
)
SPAWNING = Need("sglang.srt.entrypoints.engine._set_envs_and_config", "sets how processes are started, changed to fork")

# Bodies that are computed in memory, on a CPU as on a GPU: another loader behind --load-format private.
LOADERS = (
    Need("sglang.srt.model_loader.loader.get_model_loader", "asks for our loader", ("load_config",)),
    Need("sglang.srt.configs.load_config.LoadFormat", "has the format of our loader", fields=("PRIVATE",)),
    Need("sglang.srt.model_loader.loader.DefaultModelLoader", "loads computed weights", fields=("load_model",)),
    Need(
        "sglang.srt.model_loader.loader.DefaultModelLoader._get_all_weights",
        "is replaced where weights are computed",
        ("model_config", "model"),
        closed=True,
    ),
)

# Hooks.
REGISTRY = Need("sglang.srt.plugins.hook_registry.HookRegistry", "installs hooks", fields=("register", "apply_hooks"))
REGISTER = Need(f"{REGISTRY.name}.register", "installs a hook", ("target", "hook", "hook_type"), closed=True)
HOOKS = Need(
    "sglang.srt.plugins.hook_registry.HookType", "kinds of hooks", fields=("BEFORE", "AFTER", "AROUND", "REPLACE")
)
PLATFORM = Need(
    "sglang.srt.runtime_context.override_platform", "keeps --attention-backend intel_amx where there is no AMX",
    since="0.5.23",
)  # fmt: skip
AMX = Need(
    "sglang.srt.arg_groups.overrides.cpu_has_amx_support", "keeps --attention-backend intel_amx where there is no AMX",
    until=MENDED,
)  # fmt: skip

# Attention.
BACKEND = Need(
    "sglang.srt.layers.attention.intel_amx_backend.IntelAMXAttnBackend",
    "calls our attention, with 2 scales more since 0.5.23, and whether it is causal",
    fields=(
        *("req_to_token_pool", "token_to_kv_pool", "extend_metadata", "draft_decode_metadata"),
        *("decode_attention_fwd", "extend_attention_fwd"),
    ),
    calls={"decode_attention_fwd": (17, 19), "extend_attention_fwd": (19, 22)},
)
BACKEND_MADE = Need(f"{BACKEND.name}.__init__", "is given our attention")
BACKEND_BEGINS = Need(f"{BACKEND.name}.init_forward_metadata", "begins a forward pass", ("forward_batch",))
BATCH = Need(
    "sglang.srt.model_executor.forward_batch_info.ForwardBatch",
    "is what a forward pass computes",
    fields=("forward_mode", "out_cache_loc", "seq_lens", "req_pool_indices", "spec_info"),
)
MODE = Need(
    "sglang.srt.model_executor.forward_batch_info.ForwardMode",
    "says what kind of pass it is",
    fields=("is_decode", "is_extend", "is_target_verify", "is_idle"),
)
EXTENDS = Need(f"{MODE.name}.is_extend", "finds passes with several new tokens", ("include_draft_extend_v2",))
CURRENT_BACKEND = Need("sglang.srt.model_executor.forward_context.get_attn_backend", "finds the backend", closed=True)
KV = Need("sglang.srt.mem_cache.memory_pool.KVCache", "holds it", fields=("get_key_buffer", "get_value_buffer"))

# The forward pass of Qwen3.
_PASS = ("input_ids", "positions", "forward_batch", "input_embeds", "pp_proxy_tensors")
FORWARD = Need(
    "sglang.srt.models.qwen3.Qwen3Model.forward", "is replaced for plain models", _PASS, closed=True, since="0.5.23"
)
MODEL = (
    Need("sglang.srt.models.qwen3.Qwen3Model", "is the model whose forward pass is replaced"),
    # Qwen3Model inherits it there.
    Need("sglang.srt.models.qwen2.Qwen2Model.forward", "is replaced for Qwen3", _PASS, closed=True, until=MENDED),
    Need(
        "sglang.srt.models.qwen2.Qwen2Model",
        "holds the weights",
        fields=("embed_tokens", "layers", "norm", "layers_to_capture"),
    ),
    Need(
        "sglang.srt.models.qwen3.Qwen3DecoderLayer",
        "holds the weights",
        fields=("self_attn", "mlp", "input_layernorm", "post_attention_layernorm"),
    ),
    Need(
        "sglang.srt.models.qwen3.Qwen3Attention",
        "holds the weights",
        fields=(
            *("num_heads", "num_kv_heads", "head_dim", "rotary_emb", "qkv_proj", "o_proj", "q_norm", "k_norm"),
            "attn",
        ),
    ),
    Need("sglang.srt.models.qwen2.Qwen2MLP", "holds the weights", fields=("gate_up_proj", "down_proj")),
    Need("sglang.srt.layers.layernorm.RMSNorm", "holds the weights", fields=("weight", "variance_epsilon")),
    Need(
        "sglang.srt.layers.radix_attention.RadixAttention",
        "is the attention of a layer",
        fields=("layer_id", "scaling", "logit_cap"),
    ),
    Need(
        "sglang.srt.layers.rotary_embedding.base.RotaryEmbedding",
        "holds the angles",
        fields=("is_neox_style", "rotary_dim", "cos_sin_cache"),
    ),
    Need("sglang.srt.runtime_context.get_parallel", "says whether a model is split over workers", closed=True),
)
LINEAR = Need(
    "sglang.srt.layers.quantization.unquant.UnquantizedLinearMethod.process_weights_after_loading",
    "lays a weight out for a CPU",
    ("layer",),
)

# Sampling.
SEEDS = Need(
    "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo.from_schedule_batch", "carries seeds", ("batch",)
)
SETTINGS = Need(
    "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo",
    "has a batch's settings",
    fields=(
        *("temperatures", "top_ps", "top_ks", "min_ps", "sampling_seed", "logit_bias", "is_all_greedy"),
        *("need_top_p_sampling", "need_top_k_sampling", "need_min_p_sampling"),
    ),
)
PARAMETERS = Need(
    "sglang.srt.sampling.sampling_params.SamplingParams",
    "has a request's settings",
    fields=(
        *("sampling_seed", "frequency_penalty", "presence_penalty", "repetition_penalty", "min_new_tokens"),
        "stop_token_ids",
    ),
)
REQUEST = Need(
    "sglang.srt.managers.schedule_batch.Req",
    "has a request's tokens, which penalties count",
    fields=("output_ids", "sampling_params", "tokenizer"),
)
SAMPLE = Need(
    "sglang.srt.layers.sampler.Sampler._sample_from_probs",
    "draws tokens, by their seeds",
    ("probs", "sampling_info", "positions", "simple_sampling_case"),
    closed=True,
)

# Speculation.
VERIFY = Need(
    "sglang.srt.speculative.eagle_utils.eagle_sample",
    "verifies drafted tokens, which must leave the target's distribution as it is",
    ("verify_input", "batch", "logits_output"),
    closed=True,
)
_TREE = (
    *("draft_token", "positions", "retrieve_index", "retrieve_next_token", "retrieve_next_sibling"),
    *("draft_token_num", "max_tree_depth"),
)
TREES = (
    Need("sglang.srt.speculative.eagle_info.EagleVerifyInput", "is a tree of drafted tokens", fields=_TREE),
    Need("sglang.srt.speculative.ngram_info.NgramVerifyInput", "is a tree of drafted tokens", fields=_TREE),
)
SPECULATES = Need(
    "sglang.srt.arg_groups.speculative_hook.handle_speculative_decoding",
    "reads the settings of speculation, some of which are refused",
    ("server_args",),
)
SCALE = Need(
    "sglang.srt.sampling.penaltylib.repetition_penalty.apply_scaling_penalties",
    "is replaced: SGLang compiles it at the first request that has such a penalty",
    ("logits", "scaling_penalties"),
    closed=True,
)

STATE = Need(
    "sglang.srt.managers.scheduler.Scheduler.get_internal_state", "names its prefix cache", ("recv_req",), closed=True
)

# Mends of what newer releases do by themselves.
BUILD = Need("sglang.jit_kernel.utils.compile.load_jit", "compiles one at a time", until=MENDED)
GRAMMAR = Need(
    "sglang.srt.constrained.base_grammar_backend.create_grammar_backend", "masks on a CPU", ("server_args",),
    until=MENDED,
)  # fmt: skip
MASKS = tuple(
    Need(
        f"sglang.srt.constrained.xgrammar_backend.{owner}.apply_vocab_mask",
        "masks on a CPU",
        ("logits", "vocab_mask"),
        closed=True,
        until=MENDED,
    )
    for owner in ("XGrammarGrammar", "XGrammarGrammarBackend")
)


# The functions of sgl_kernel behind which the operators of cpu/speculation stand, with the operators' arguments.
_LINKS = ("positions", "retrive_index", "retrive_next_token", "retrive_next_sibling")
_ROWS = ("req_pool_indices", "req_to_token")
_STRETCH = (*_ROWS, "start_offset", "end_offset", "out_cache_loc", "pool_len")
_KERNELS = {
    "speculative.assign_req_to_token_pool_cpu": _STRETCH,
    "speculative.assign_extend_cache_locs_cpu": _STRETCH,
    "speculative.assign_draft_cache_locs_contiguous_cpu": (
        *_ROWS,
        *("seq_lens", "out_cache_loc", "pool_len", "topk", "num_steps"),
    ),
    "speculative.build_draft_decode_metadata_cpu": (
        *_ROWS[::-1],
        *("seq_lens", "topk", "num_steps", "pool_len"),
    ),
    "speculative.fill_accept_out_cache_loc_cpu": ("accept_index", "out_cache_loc", "accept_out_cache_loc"),
    "speculative.fill_bonus_tokens_cpu": ("accept_tokens", "accept_lens", "bonus_tokens", "accept_stride"),
    "speculative.rotate_input_ids_cpu": (
        *("input_ids", "extend_start_loc", "extend_seq_lens", "topk_index", "select_index"),
    ),
    "speculative.verify_tree_greedy_cpu": (
        *("predicts", "accept_index", "accept_token_num", "candidates", *_LINKS[1:], "target_predict"),
    ),
    "speculative.build_tree_kernel_efficient_cpu": (
        *("parent_list", "selected_index", "verified_seq_len", "tree_mask", *_LINKS),
        *("topk", "depth", "draft_token_num", "tree_mask_mode"),
    ),
    "speculative.reconstruct_indices_from_tree_mask": (
        *("tree_mask", "verified_seq_len", *_LINKS, "batch_size", "draft_token_num"),
    ),
    "kvcacheio.copy_all_layer_kv_cache_cpu": ("data_ptrs", "strides", "tgt_loc", "src_loc"),
}
KERNELS = tuple(
    Need(f"sgl_kernel.{name}", "calls an operator of ours", takes, closed=True) for name, takes in _KERNELS.items()
)

NEEDS = (
    *(*LAUNCH, *LOADERS, SPAWNING, REGISTRY, REGISTER, HOOKS, PLATFORM, AMX),
    *(BACKEND, BACKEND_MADE, BACKEND_BEGINS, BATCH, MODE, EXTENDS, CURRENT_BACKEND, KV),
    *(STATE, FORWARD, *MODEL, LINEAR, SEEDS, SETTINGS, PARAMETERS, REQUEST, SAMPLE),
    *(VERIFY, *TREES, SPECULATES, SCALE, BUILD, GRAMMAR, *MASKS, *KERNELS),
)
