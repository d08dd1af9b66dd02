"""What lr-sglang needs of SGLang's frontend language, beside its public names (``sgl.gen``, ``sgl.function``)."""

from __future__ import annotations

from lr_sglang.sglang_api.need import Need

_INTERPRETER = "sglang.lang.interpreter"
NEEDS = (
    Need(f"{_INTERPRETER}.ProgramState", "is what a program works on", fields=("fork", "stream_executor", "text")),
    Need(
        f"{_INTERPRETER}.StreamExecutor",
        "is the base of the executor without threads",
        fields=(
            *("arguments", "backend", "chat_template", "cur_images", "cur_role", "cur_role_begin_pos", "error_"),
            *("default_sampling_para", "fork_start_text_pos", "images_", "is_finished", "messages_", "meta_info"),
            *("stream", "stream_text_event", "stream_var_event", "text_", "variable_event", "variables"),
            *(
                "_execute",
                "_execute_role_end",
                "_init_var_event",
                "_resolve_sampling_params",
                "end",
                "error",
                "fork",
                "get_meta_info",
            ),
            *("get_var", "messages", "submit", "sync", "text"),
        ),
    ),
    Need(
        f"{_INTERPRETER}.StreamExecutor.__init__",
        "makes a state",
        (
            "backend",
            "arguments",
            "default_sampling_para",
            "chat_template",
            "stream",
            "num_api_spec_tokens",
            "use_thread",
        ),
        closed=True,
    ),
    Need(f"{_INTERPRETER}.StreamExecutor.fork", "copies a state", ("size", "position_ids_offset"), closed=True),
    Need(f"{_INTERPRETER}.StreamExecutor._execute", "does one expression", ("other",), closed=True),
    Need(
        f"{_INTERPRETER}.StreamExecutor._resolve_sampling_params",
        "settles a gen's parameters",
        ("sampling_params",),
        closed=True,
    ),
    Need(
        f"{_INTERPRETER}.run_internal",
        "runs a program, and is made to wait for one that is a coroutine",
        ("state", "program", "func_args", "func_kwargs", "sync"),
        closed=True,
    ),
    *(
        Need(f"sglang.lang.ir.{name}", "is an expression that takes time", fields=fields)
        for name, fields in {
            "SglExprList": ("expr_list",),
            "SglSelect": ("name", "choices", "temperature", "choices_method"),
            "SglConcateAndAppend": ("states",),
        }.items()
    ),
    Need("sglang.lang.ir.SglGen", "is one gen"),
    Need("sglang.lang.ir.SglFunction", "is a program"),
    Need(
        "sglang.lang.ir.SglSamplingParams",
        "is what a gen asks for",
        fields=(
            *("max_new_tokens", "min_new_tokens", "n", "stop", "stop_token_ids", "stop_regex", "ignore_eos"),
            *("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty"),
            *("return_logprob", "logprob_start_len", "dtype", "regex", "json_schema", "to_srt_kwargs"),
        ),
    ),
    Need(
        "sglang.lang.backend.base_backend.BaseBackend",
        "is what runs a program's expressions",
        fields=("generate", "generate_stream", "select", "end_program", "shutdown", "flush_cache", "get_model_name"),
    ),
    Need(
        "sglang.lang.backend.runtime_endpoint.RuntimeEndpoint._handle_dtype_to_regex",
        "turns a gen's dtype into a regex",
        ("sampling_params",),
        closed=True,
    ),
    Need(
        "sglang.lang.chat_template.ChatTemplate",
        "writes no role markers into a state's text",
        fields=("name", "default_system_prompt", "role_prefix_and_suffix"),
    ),
    Need("sglang.lang.choices.ChoicesDecision", "is what select returns", fields=("decision", "meta_info")),
    Need(
        "sglang.lang.choices.ChoicesSamplingMethod",
        "scores choices",
        fields=("__call__", "requires_unconditional_logprobs"),
    ),
    Need("sglang.srt.utils.hf_transformers_patches.apply_all", "is left out where no model runs", closed=True),
)
