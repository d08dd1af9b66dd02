"""The names that lr-sglang uses of SGLang's frontend language, besides public ones such as
``sgl.gen``.
"""

from __future__ import annotations

from lr_sglang.sglang_api.need import Need, called

_LANG = "sglang.lang"
_EXECUTOR = f"{_LANG}.interpreter.StreamExecutor"
# Class -> the reason, and the attributes and methods that are used.
_CLASSES = {
    f"{_LANG}.interpreter.ProgramState": (
        "is what a program works on",
        "fork stream_executor text",
    ),
    _EXECUTOR: (
        "is the base of the executor without threads",
        "arguments backend chat_template cur_images cur_role cur_role_begin_pos error_ "
        "default_sampling_para"
        " fork_start_text_pos images_ is_finished messages_ meta_info stream stream_text_event "
        "stream_var_event text_"
        " variable_event variables _execute _execute_role_end _init_var_event "
        "_resolve_sampling_params end error fork"
        " get_meta_info get_var messages submit sync text",
    ),
    f"{_LANG}.ir.SglGen": ("is one gen", ""),
    f"{_LANG}.ir.SglFunction": ("is a program", ""),
    f"{_LANG}.ir.SglExprList": ("is an expression that takes time", "expr_list"),
    f"{_LANG}.ir.SglSelect": (
        "is an expression that takes time",
        "name choices temperature choices_method",
    ),
    f"{_LANG}.ir.SglConcateAndAppend": ("is an expression that takes time", "states"),
    f"{_LANG}.ir.SglSamplingParams": (
        "is what a gen asks for",
        "max_new_tokens min_new_tokens n stop stop_token_ids stop_regex ignore_eos temperature "
        "top_p top_k min_p"
        " frequency_penalty presence_penalty return_logprob logprob_start_len dtype regex "
        "json_schema to_srt_kwargs",
    ),
    f"{_LANG}.backend.base_backend.BaseBackend": (
        "is what runs a program's expressions",
        "generate generate_stream select end_program shutdown flush_cache get_model_name",
    ),
    f"{_LANG}.chat_template.ChatTemplate": (
        "writes no role markers into a state's text",
        "name default_system_prompt role_prefix_and_suffix",
    ),
    f"{_LANG}.choices.ChoicesDecision": ("is what select returns", "decision meta_info"),
    f"{_LANG}.choices.ChoicesSamplingMethod": (
        "scores choices",
        "__call__ requires_unconditional_logprobs",
    ),
}
NEEDS = (
    *(Need(name, why, fields=fields) for name, (why, fields) in _CLASSES.items()),
    called(
        f"{_EXECUTOR}.__init__",
        "makes a state",
        "backend arguments default_sampling_para chat_template stream num_api_spec_tokens "
        "use_thread",
    ),
    called(f"{_EXECUTOR}.fork", "copies a state", "size position_ids_offset"),
    called(f"{_EXECUTOR}._execute", "does one expression", "other"),
    called(
        f"{_EXECUTOR}._resolve_sampling_params", "settles a gen's parameters", "sampling_params"
    ),
    called(
        f"{_LANG}.interpreter.run_internal",
        "runs a program, and is made to wait for one that is a coroutine",
        "state program func_args func_kwargs sync",
    ),
    called(
        f"{_LANG}.backend.runtime_endpoint.RuntimeEndpoint._handle_dtype_to_regex",
        "turns a gen's dtype into a regex",
        "sampling_params",
    ),
    called("sglang.srt.utils.hf_transformers_patches.apply_all", "is left out where no model runs"),
)
