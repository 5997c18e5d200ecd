"""Writes the small model's Hugging Face folder: config, byte-level tokenizer, chat template.

A token is a byte and its id is the byte's value; two special tokens follow. Knows nothing of
training.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel

# The committed model.
FOLDER = Path(__file__).parent / "sluice-tiny"
END_TOKEN, END_ID = "<|end|>", 256
PAD_TOKEN, PAD_ID = "<|pad|>", 257
VOCABULARY = 258
MAX_POSITIONS = 8192

# Messages are lines; an answer ends with the end token. Roles leave no trace in the text, so a
# completion prompt and its chat form are the same tokens.
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{%- if message.content is string -%}{{ message.content }}
{%- else -%}{%- for part in message.content -%}{{ part.text }}{%- endfor -%}{%- endif -%}
{%- if message.role == 'assistant' -%}{{ '<|end|>' }}{%- else -%}{{ '\\n' }}{%- endif -%}
{%- endfor -%}
"""


# In the layout of published Qwen3 folders. About 0.8 million parameters; half of each head's rotary
# pairs turn less than half a radian over 1,000 tokens, so content can be matched at any distance.
CONFIG: dict[str, object] = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "eos_token_id": END_ID,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 128,
    "initializer_range": 0.02,
    "intermediate_size": 256,
    "max_position_embeddings": MAX_POSITIONS,
    "model_type": "qwen3",
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "pad_token_id": PAD_ID,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1_000_000,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": VOCABULARY,
}
TOKENIZER_CONFIG: dict[str, object] = {
    "add_bos_token": False,
    "bos_token": None,
    "clean_up_tokenization_spaces": False,
    "eos_token": END_TOKEN,
    "model_max_length": MAX_POSITIONS,
    "pad_token": PAD_TOKEN,
    "tokenizer_class": "PreTrainedTokenizerFast",
}
GENERATION_CONFIG: dict[str, object] = {
    "do_sample": False,
    "eos_token_id": [END_ID],
    "pad_token_id": PAD_ID,
}


def _byte_alphabet() -> dict[str, int]:
    """ByteLevel's printable stand-in for each byte, by the byte's value."""
    # Printable Latin-1 bytes stand for themselves; the others, in order, for U+0100 and up.
    own = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in own]
    stand_in = {byte: chr(byte) for byte in own}
    stand_in |= {byte: chr(0x100 + index) for index, byte in enumerate(others)}
    assert set(stand_in.values()) == set(ByteLevel.alphabet())
    return {stand_in[byte]: byte for byte in range(256)}


def byte_tokenizer() -> Tokenizer:
    """BPE without merges over the 256 bytes; encoding adds no special tokens."""
    tokenizer = Tokenizer(models.BPE(vocab=_byte_alphabet(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in (END_TOKEN, PAD_TOKEN)]
    )
    return tokenizer


def write_folder(folder: Path) -> None:
    """Writes all of the folder except the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (
        ("config.json", CONFIG),
        ("tokenizer_config.json", TOKENIZER_CONFIG),
        ("generation_config.json", GENERATION_CONFIG),
    ):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
