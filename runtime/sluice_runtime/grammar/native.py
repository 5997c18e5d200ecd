"""The five classes of xgrammar's native library that are used, without its Python package.

The package imports torch and transformers: 480 MB and ten seconds more in each grammar process
(docs/decisions/grammar-library-without-its-package.md). These classes are no public API;
pyproject.toml pins the version, and the tests use each. Imports no torch by itself.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvm_ffi import Object, register_object
from tvm_ffi.libinfo import load_lib_module

RAW: int = 0
"""Vocabulary type: tokens are given as their bytes."""


def _library() -> Any:
    package = importlib.util.find_spec("xgrammar")
    assert package is not None, "xgrammar is not installed"
    folders = [Path(folder) for folder in package.submodule_search_locations or ()]
    return load_lib_module("xgrammar", "xgrammar_bindings", extra_lib_paths=folders)


_LIBRARY = _library()


@register_object("xgrammar.tvm_ffi_binding.TokenizerInfo")
class TokenizerInfo(Object):
    """(tokens, vocabulary type, vocabulary size, stop token ids, adds a prefix space)."""

    if TYPE_CHECKING:

        def __init__(
            self,
            tokens: Sequence[bytes],
            kind: int,
            size: int,
            stop_token_ids: Sequence[int],
            prefix_space: bool,
        ) -> None: ...
        def serialize_json(self) -> str: ...
        @staticmethod
        def deserialize_json(text: str) -> TokenizerInfo: ...


@register_object("xgrammar.tvm_ffi_binding.Grammar")
class NativeGrammar(Object):
    """Returned by the library, never made here."""


@register_object("xgrammar.tvm_ffi_binding.CompiledGrammar")
class CompiledGrammar(Object):
    """A grammar with the masks that do not depend on the text before."""

    if TYPE_CHECKING:

        def serialize_json(self) -> str: ...
        @staticmethod
        def deserialize_json(text: str, tokenizer: TokenizerInfo) -> CompiledGrammar: ...


@register_object("xgrammar.tvm_ffi_binding.GrammarCompiler")
class GrammarCompiler(Object):
    """(tokenizer, threads, keeps a cache, bytes of it); methods take all arguments by position."""

    if TYPE_CHECKING:

        def __init__(
            self, tokenizer: TokenizerInfo, threads: int, caches: bool, cache_bytes: int
        ) -> None: ...
        def compile_json_schema(
            self,
            schema: str,
            any_whitespace: bool,
            indent: int | None,
            separators: tuple[str, str] | None,
            strict: bool,
            max_whitespace: int | None,
            any_order: bool,
        ) -> CompiledGrammar: ...
        def compile_regex(self, pattern: str) -> CompiledGrammar: ...
        def compile_grammar_from_strings(self, ebnf: str, root: str) -> CompiledGrammar: ...
        def compile_structural_tag(self, tag: str) -> CompiledGrammar: ...


@register_object("xgrammar.tvm_ffi_binding.GrammarMatcher")
class GrammarMatcher(Object):
    """(compiled, stop token ids, ends without one, -1, None): the state of one answer."""

    if TYPE_CHECKING:

        def __init__(
            self,
            compiled: CompiledGrammar,
            stop_token_ids: Sequence[int] | None,
            ends_without_stop_token: bool,
            rollback: int,
            temperature: float | None,
        ) -> None: ...
        def accept_token(self, token: int, prints: bool) -> bool: ...
        def fill_next_token_bitmask(self, mask: Any, row: int, prints: bool) -> bool: ...
        def rollback(self, tokens: int) -> None: ...
        def is_terminated(self) -> bool: ...
