"""config.json of published quantised models, as far as sizes depend on them, by repository."""

from __future__ import annotations

from typing import Any, Final

_LLAMA_70B: Final = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8192,
    "intermediate_size": 28_672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128_256,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "rope_scaling": {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
_GPT_OSS: Final = {
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "initial_context_length": 4096,
    "intermediate_size": 2880,
    "max_position_embeddings": 131_072,
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "vocab_size": 201_088,
    "dtype": "bfloat16",
    "quantization_config": {
        "modules_to_not_convert": [
            "model.layers.*.self_attn",
            "model.layers.*.mlp.router",
            "model.embed_tokens",
            "lm_head",
        ],
        "quant_method": "mxfp4",
    },
}
_CHANNELS: Final = {
    "num_bits": 8,
    "type": "float",
    "strategy": "channel",
    "symmetric": True,
    "dynamic": False,
}
_AWQ: Final = {
    "bits": 4,
    "group_size": 128,
    "modules_to_not_convert": None,
    "quant_method": "awq",
    "version": "gemm",
    "zero_point": True,
}
_QWEN2_72B: Final = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 8192,
    "intermediate_size": 29_696,
    "max_position_embeddings": 32_768,
    "num_attention_heads": 64,
    "num_hidden_layers": 80,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "vocab_size": 152_064,
}
"""Its width is padded from 29,568, so that groups of 128 are divided among 8 GPUs."""
CONFIGS: Final[dict[str, dict[str, Any]]] = {
    "openai/gpt-oss-20b": {**_GPT_OSS, "num_hidden_layers": 24, "num_local_experts": 32},
    "openai/gpt-oss-120b": {**_GPT_OSS, "num_hidden_layers": 36, "num_local_experts": 128},
    "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic": {
        **_LLAMA_70B,
        "torch_dtype": "bfloat16",
        "quantization_config": {
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": _CHANNELS}},
            "format": "float-quantized",
            "ignore": ["lm_head"],
            "quant_method": "compressed-tensors",
        },
    },
    "casperhansen/llama-3.3-70b-instruct-awq": {
        **_LLAMA_70B,
        "torch_dtype": "float16",
        "quantization_config": _AWQ,
    },
    "Qwen/Qwen3-30B-A3B-FP8": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "decoder_sparse_step": 1,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "max_position_embeddings": 40_960,
        "mlp_only_layers": [],
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "num_attention_heads": 32,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": 151_936,
        "quantization_config": {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "modules_to_not_convert": [
                "lm_head",
                *(
                    f"model.layers.{layer}.{module}"
                    for layer in range(48)
                    for module in ("input_layernorm", "mlp.gate", "post_attention_layernorm")
                ),
            ],
            "quant_method": "fp8",
            "weight_block_size": [128, 128],
        },
    },
    "Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4": {
        **_QWEN2_72B,
        "quantization_config": {
            "bits": 4,
            "damp_percent": 0.01,
            "desc_act": False,
            "group_size": 128,
            "quant_method": "gptq",
            "sym": True,
            "true_sequential": True,
        },
    },
    "Qwen/Qwen2.5-72B-Instruct-AWQ": {**_QWEN2_72B, "quantization_config": _AWQ},
}
"""Written by hand; lists of layers and keys that no size depends on are left out."""
