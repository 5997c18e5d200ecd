"""Values of config.json files, small, as families spell them."""

from __future__ import annotations

from typing import Any

QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "sliding_window": None,
    "use_sliding_window": False,
    "max_window_layers": 2,
    "layer_types": ["full_attention", "full_attention"],
    "attention_bias": False,
    "quantization_config": None,
}
LLAMA = {**QWEN3, "architectures": ["LlamaForCausalLM"]}
QWEN2 = {**QWEN3, "architectures": ["Qwen2ForCausalLM"], "sliding_window": 131_072}
MISTRAL = {
    **{key: value for key, value in QWEN3.items() if "window" not in key},
    "architectures": ["MistralForCausalLM"],
    "max_position_embeddings": 32_768,
}
MOE = {
    **QWEN3,
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
MIXTRAL = {
    **MISTRAL,
    "architectures": ["MixtralForCausalLM"],
    "num_local_experts": 8,
    "sliding_window": None,
}
PHI3 = {**MISTRAL, "architectures": ["Phi3ForCausalLM"], "sliding_window": None}
GLM4 = {**MISTRAL, "architectures": ["Glm4ForCausalLM"], "head_dim": 16}
OLMO2 = {**MISTRAL, "architectures": ["Olmo2ForCausalLM"]}
GRANITE = {
    **MISTRAL,
    "architectures": ["GraniteForCausalLM"],
    "embedding_multiplier": 12.0,
    "attention_multiplier": 0.125,
    "residual_multiplier": 0.25,
    "logits_scaling": 8.0,
}
LONG = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [4] * 8}
YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
GPT_OSS = {
    **{key: value for key, value in QWEN3.items() if "window" not in key},
    "architectures": ["GptOssForCausalLM"],
    "num_local_experts": 8,
    "num_experts_per_tok": 4,
    "experts_per_token": 4,
    "layer_types": None,
    "attention_bias": True,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "rope_theta": 150000,
    "rope_scaling": YARN,
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
}
GEMMA3 = {
    **{key: value for key, value in QWEN3.items() if "window" not in key},
    "architectures": ["Gemma3ForCausalLM"],
    "head_dim": 128,
    "num_hidden_layers": 12,
    "layer_types": None,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 32,
    "sliding_window": 64,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}
"""As released files spell it."""
GEMMA3_ROPES = {
    "rope_scaling": None,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
