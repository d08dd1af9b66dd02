"""The internal names of SGLang that servers on a CPU use: hooked functions, and the objects that
hooks receive.

A hook is registered by the name of a Need here, so that exactly the checked names are hooked.
"""

from __future__ import annotations

from lr_sglang.sglang_api.need import Need, called

MENDED = "0.5.16"  # the last tested release with the defects that some hooks mend

_SRT = "sglang.srt"
_BACKEND = f"{_SRT}.layers.attention.intel_amx_backend.IntelAMXAttnBackend"
_LOADER = f"{_SRT}.model_loader.loader"
_BATCHES = f"{_SRT}.model_executor.forward_batch_info"
_SAMPLING = f"{_SRT}.sampling"
_QWEN2, _QWEN3 = f"{_SRT}.models.qwen2", f"{_SRT}.models.qwen3"
_PASS = "input_ids positions forward_batch input_embeds pp_proxy_tensors"
_TREE = (
    "draft_token positions retrieve_index retrieve_next_token retrieve_next_sibling "
    "draft_token_num max_tree_depth"
)

# Hooked functions.
SPAWNING = Need(
    f"{_SRT}.entrypoints.engine._set_envs_and_config",
    "sets how processes are started, changed to fork",
)
PLATFORM = Need(
    f"{_SRT}.runtime_context.override_platform", "allows our attention without AMX", since="0.5.23"
)
AMX = Need(
    f"{_SRT}.arg_groups.overrides.cpu_has_amx_support",
    "allows our attention without AMX",
    until=MENDED,
)
BACKEND_MADE = Need(f"{_BACKEND}.__init__", "is given our attention")
BACKEND_BEGINS = Need(f"{_BACKEND}.init_forward_metadata", "begins a forward pass", "forward_batch")
FORWARD = called(
    f"{_QWEN3}.Qwen3Model.forward", "is replaced for plain models", _PASS, since="0.5.23"
)
LINEAR = Need(
    f"{_SRT}.layers.quantization.unquant.UnquantizedLinearMethod.process_weights_after_loading",
    "lays a weight out for a CPU",
    "layer",
)
SEEDS = Need(
    f"{_SAMPLING}.sampling_batch_info.SamplingBatchInfo.from_schedule_batch",
    "carries seeds",
    "batch",
)
SAMPLE = called(
    f"{_SRT}.layers.sampler.Sampler._sample_from_probs",
    "draws tokens, by their seeds",
    "probs sampling_info positions simple_sampling_case",
)
VERIFY = called(
    f"{_SRT}.speculative.eagle_utils.eagle_sample",
    "verifies drafted tokens, which must leave the target's distribution as it is",
    "verify_input batch logits_output",
)
SPECULATES = Need(
    f"{_SRT}.arg_groups.speculative_hook.handle_speculative_decoding",
    "reads the settings of speculation, some of which are refused",
    "server_args",
)
SCALE = called(
    f"{_SAMPLING}.penaltylib.repetition_penalty.apply_scaling_penalties",
    "is replaced: SGLang compiles it at the first request that has such a penalty",
    "logits scaling_penalties",
)
STATE = called(
    f"{_SRT}.managers.scheduler.Scheduler.get_internal_state", "names its prefix cache", "recv_req"
)

# Mended functions, which newer releases do not need.
BUILD = Need("sglang.jit_kernel.utils.compile.load_jit", "compiles one at a time", until=MENDED)
GRAMMAR = Need(
    f"{_SRT}.constrained.base_grammar_backend.create_grammar_backend",
    "masks on a CPU",
    "server_args",
    until=MENDED,
)
MASKS = tuple(
    called(
        f"{_SRT}.constrained.xgrammar_backend.{it}.apply_vocab_mask",
        "masks",
        "logits vocab_mask",
        until=MENDED,
    )
    for it in ("XGrammarGrammar", "XGrammarGrammarBackend")
)

# The functions of sgl_kernel that call our operators (cpu/speculation), with the operators'
# arguments.
_STRETCH = "req_pool_indices req_to_token start_offset end_offset out_cache_loc pool_len"
_LINKS = "retrive_index retrive_next_token retrive_next_sibling"
_KERNELS = {
    "speculative.assign_req_to_token_pool_cpu": _STRETCH,
    "speculative.assign_extend_cache_locs_cpu": _STRETCH,
    "speculative.assign_draft_cache_locs_contiguous_cpu": "req_pool_indices req_to_token "
    "seq_lens out_cache_loc"
    " pool_len topk num_steps",
    "speculative.build_draft_decode_metadata_cpu": "req_to_token req_pool_indices seq_lens "
    "topk num_steps pool_len",
    "speculative.fill_accept_out_cache_loc_cpu": "accept_index out_cache_loc accept_out_cache_loc",
    "speculative.fill_bonus_tokens_cpu": "accept_tokens accept_lens bonus_tokens accept_stride",
    "speculative.rotate_input_ids_cpu": "input_ids extend_start_loc extend_seq_lens topk_index "
    "select_index",
    "speculative.verify_tree_greedy_cpu": "predicts accept_index accept_token_num candidates "
    f"{_LINKS} target_predict",
    "speculative.build_tree_kernel_efficient_cpu": "parent_list selected_index "
    "verified_seq_len tree_mask positions"
    f" {_LINKS} topk depth draft_token_num tree_mask_mode",
    "speculative.reconstruct_indices_from_tree_mask": "tree_mask verified_seq_len positions"
    f" {_LINKS} batch_size draft_token_num",
    "kvcacheio.copy_all_layer_kv_cache_cpu": "data_ptrs strides tgt_loc src_loc",
}

# Reason -> objects, with the fields that are used.
_OBJECTS = {
    "settings of a server on a CPU": {
        f"{_SRT}.environ.Envs": "SGLANG_DISABLED_MODEL_ARCHS SGLANG_EAGER_INPUT_NO_COPY"
    },
    "computes weights in memory, behind --load-format private": {
        f"{_SRT}.configs.load_config.LoadFormat": "PRIVATE",
        f"{_LOADER}.DefaultModelLoader": "load_model",
    },
    "installs hooks": {
        f"{_SRT}.plugins.hook_registry.HookRegistry": "register apply_hooks",
        f"{_SRT}.plugins.hook_registry.HookType": "BEFORE AFTER AROUND REPLACE",
    },
    "is what a forward pass computes": {
        f"{_BATCHES}.ForwardBatch": "forward_mode out_cache_loc seq_lens req_pool_indices "
        "spec_info",
        f"{_BATCHES}.ForwardMode": "is_decode is_extend is_target_verify is_idle",
        f"{_SRT}.mem_cache.memory_pool.KVCache": "get_key_buffer get_value_buffer",
    },
    "is a part of Qwen3, whose forward pass is replaced": {
        f"{_QWEN3}.Qwen3Model": "",
        f"{_QWEN2}.Qwen2Model": "embed_tokens layers norm layers_to_capture",
        f"{_QWEN3}.Qwen3DecoderLayer": "self_attn mlp input_layernorm post_attention_layernorm",
        f"{_QWEN3}.Qwen3Attention": "num_heads num_kv_heads head_dim rotary_emb qkv_proj "
        "o_proj q_norm k_norm attn",
        f"{_QWEN2}.Qwen2MLP": "gate_up_proj down_proj",
        f"{_SRT}.layers.layernorm.RMSNorm": "weight variance_epsilon",
        f"{_SRT}.layers.radix_attention.RadixAttention": "layer_id scaling logit_cap",
        f"{_SRT}.layers.rotary_embedding.base.RotaryEmbedding": "is_neox_style rotary_dim "
        "cos_sin_cache",
    },
    "says how a request's tokens are drawn": {
        f"{_SAMPLING}.sampling_batch_info.SamplingBatchInfo": "temperatures top_ps top_ks "
        "min_ps sampling_seed"
        " logit_bias is_all_greedy need_top_p_sampling need_top_k_sampling need_min_p_sampling",
        f"{_SAMPLING}.sampling_params.SamplingParams": "sampling_seed frequency_penalty "
        "presence_penalty"
        " repetition_penalty min_new_tokens stop_token_ids",
        f"{_SRT}.managers.schedule_batch.Req": "output_ids sampling_params tokenizer",
    },
    "is a tree of drafted tokens": {
        f"{_SRT}.speculative.eagle_info.EagleVerifyInput": _TREE,
        f"{_SRT}.speculative.ngram_info.NgramVerifyInput": _TREE,
    },
}

NEEDS = (
    called("sglang.launch_server.run_server", "runs a server in our launcher", "server_args"),
    called(f"{_SRT}.server_args.prepare_server_args", "reads its command line", "argv"),
    called(f"{_SRT}.plugins.load_plugins", "installs the hooks before the fork"),
    Need(f"{_SRT}.server_args", "its flags are read from the source"),
    Need(f"{_SRT}.utils.common.kill_process_tree", "ends its processes"),
    Need(f"{_SRT}.entrypoints.http_server", "is imported before the processes are forked"),
    Need(f"{_SRT}.managers.scheduler", "is imported before the processes are forked"),
    Need(f"{_SRT}.managers.detokenizer_manager", "is imported before the processes are forked"),
    Need(f"{_SRT}.speculative.spec_info.SpeculativeAlgorithm", "names the token layers"),
    Need(f"{_LOADER}.get_model_loader", "asks for our loader", "load_config"),
    called(
        f"{_LOADER}.DefaultModelLoader._get_all_weights",
        "is replaced for computed weights",
        "model_config model",
    ),
    called(
        f"{_SRT}.plugins.hook_registry.HookRegistry.register",
        "installs a hook",
        "target hook hook_type",
    ),
    Need(
        _BACKEND,
        "calls our attention, with 2 scales more since 0.5.23, and whether it is causal",
        fields="req_to_token_pool token_to_kv_pool extend_metadata draft_decode_metadata"
        " decode_attention_fwd extend_attention_fwd",
        calls={"decode_attention_fwd": (17, 19), "extend_attention_fwd": (19, 22)},
    ),
    Need(
        f"{_BATCHES}.ForwardMode.is_extend",
        "finds passes with several new tokens",
        "include_draft_extend_v2",
    ),
    called(f"{_SRT}.model_executor.forward_context.get_attn_backend", "finds the backend"),
    # In these releases Qwen3Model inherits it.
    called(f"{_QWEN2}.Qwen2Model.forward", "is replaced for Qwen3", _PASS, until=MENDED),
    called(f"{_SRT}.runtime_context.get_parallel", "says whether a model is split over workers"),
    *(
        Need(name, why, fields=fields)
        for why, objects in _OBJECTS.items()
        for name, fields in objects.items()
    ),
    *(SPAWNING, PLATFORM, AMX, BACKEND_MADE, BACKEND_BEGINS, STATE, FORWARD, LINEAR, SEEDS, SAMPLE),
    *(VERIFY, SPECULATES, SCALE, BUILD, GRAMMAR, *MASKS),
    *(
        called(f"sgl_kernel.{name}", "calls an operator of ours", takes)
        for name, takes in _KERNELS.items()
    ),
)
