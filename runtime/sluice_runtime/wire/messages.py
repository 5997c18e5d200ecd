"""The messages between API process and engine process.

msgspec structs, encoded as msgpack with a tag per type; plain values only. Knows no socket (see
`transport.py`) and no torch. A struct here is a contract: fields are added with defaults and
`PROTOCOL_VERSION` goes up, none is reinterpreted.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from sluice_contract.cluster.labels import Role
from sluice_contract.wire.load import EngineFigures
from sluice_contract.wire.spans import trace_id

PROTOCOL_VERSION: Final = 26

FinishReason = Literal["stop", "length", "abort", "error"]
Refusal = Literal[
    "overloaded",
    "unavailable",
    "uncompiled",
    "invalid",
    "out_of_memory",
    "prefill_failed",
    "prefill_unavailable",
    "handed_back",
]
"""Why the engine refused or ended a request. `invalid`: the grammar is at fault. `uncompiled`,
`out_of_memory`: the request may be at fault. The others: it is not, so another engine may run
it. `prefill_failed`: the engine that computes its prompt failed, or the pages did not arrive.
`prefill_unavailable`: that engine never took it. `handed_back`: it had not begun, and another
engine has room."""
GrammarKind = Literal["json_schema", "regex", "ebnf", "lark"]
"""`json_schema`: as `grammar/json_schema.py` writes it. `lark`: the grammar library's own language,
for choices and tool calls."""


class Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base of everything that crosses the process border."""


class Sampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the next token is drawn. Random numbers depend on (seed, position) only."""

    temperature: float = 1.0
    """0: greedy."""
    top_p: float = 1.0
    top_k: int = -1
    """-1: all."""
    seed: int = 0
    """63 bits; drawn by the API process if the client gave none."""
    min_p: float = 0.0
    """Tokens less probable than this fraction of the most probable one are left out."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: list[tuple[int, float]] = []
    """Token id, and what is added to its logit."""
    min_tokens: int = 0
    """No stop token is sampled before the answer has so many tokens."""

    @property
    def penalises(self) -> bool:
        """Whether a penalty changes the logits."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1)


class Grammar(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The grammar an answer must follow; the engine compiles it before the request can run."""

    kind: GrammarKind
    text: str
    end_token_ids: list[int]
    """The tokens that may end the answer, once it is complete; one at least."""
    field: str
    """The field of the HTTP request that set the grammar; named in refusals."""
    min_tokens: int = 0
    """No stop token is sampled before so many tokens, unless the grammar allows nothing else."""
    ends_late: bool = False
    """Whether the answer ends only where the grammar allows nothing else."""


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Log-probability of one token, before bias, penalties, grammar and temperature. Never in a
    reference cycle, so not tracked by the garbage collector: a long prompt has very many."""

    token_id: int
    logprob: float
    rank: int
    """1: the most probable token."""
    top: list[tuple[int, float]]
    """The most probable tokens, best first, with their logprobs; as many as requested."""


class PrefillEngine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The engine that computes a request's prompt: `sluice_contract.wire.handover.PrefillRef`."""

    host: str
    port: int
    epoch: str
    name: str = ""


class ApiReady(Message, frozen=True):
    """API → engine: before any other message."""

    protocol_version: int


class Generate(Message, frozen=True):
    """API → engine: run this prompt. Exactly one terminal `TokenDelta` answers it."""

    request_id: str
    """Made by the API process for each choice, never taken from a client: unique."""
    prompt_ids: list[int]
    max_tokens: int
    """Already limited to what the context and the pool hold."""
    sampling: Sampling
    stop_token_ids: list[int] = []
    """EOS ids and the client's; empty with `ignore_eos`. The stop token itself is delivered."""
    ignore_eos: bool = False
    """EOS does not end the answer, so admission reserves all of `max_tokens`."""
    arrival_seconds: float = 0.0
    """`time.monotonic()` at which the API process read the request; one clock on one host."""
    credit_tokens: int = 4096
    """Tokens that the engine may send before the API process grants more."""
    priority: int = 0
    """Larger is more urgent; read by the policies priority and adaptive."""
    routing_key: str = ""
    """Session or adapter, as the client calls it, or the tenant; read by the policy round-robin."""
    logprobs: int = -1
    """Most probable tokens to return for each token of the answer; -1: no logprobs."""
    prompt_logprobs: int = -1
    """Most probable tokens for each token of the prompt, which is then computed without cached
    prefixes; -1: none."""
    cache_salt: str = ""
    """Cached prefixes are shared only with requests of the same salt."""
    grammar: Grammar | None = None
    prefill: PrefillEngine | None = None
    """In a decode engine, of every request of a client: who computes its prompt."""
    generated_ids: list[int] = []
    """What another engine generated of the answer. It goes on as one that was retracted:
    `max_tokens`, penalties and `min_tokens` count these, and neither they nor the prompt's logprobs
    are delivered."""

    adapter: str = ""
    """Key of the adapter that the tokens are generated with; empty: of none."""

    traceparent: str = ""
    """W3C's, of the client's request; the same in every engine that has part in it."""

    tenant: str = ""
    """Whose request it is, as the router has signed; empty: there are no tenants."""

    moved: int = 0
    """Number of times that engines have handed the request back."""
    prompt_counted: bool = False
    """Whether an engine that handed the request back has counted its prompt as received."""
    waited_seconds: float = 0.0
    """Time between `arrival_seconds` and the arrival at this engine."""

    @property
    def label(self) -> str:
        """For logs: its id, and its trace's if it has one."""
        trace = trace_id(self.traceparent)
        return f"{self.request_id} trace={trace}" if trace else self.request_id

    @property
    def token_ids(self) -> list[int]:
        """All that is prefilled."""
        return self.prompt_ids + self.generated_ids if self.generated_ids else self.prompt_ids


class Abort(Message, frozen=True):
    """API → engine: end the request (client disconnected, stop string). Unknown ids are ignored."""

    request_id: str


class Credit(Message, frozen=True):
    """API → engine: the client has read `tokens` more of this request."""

    request_id: str
    tokens: int


class FlushCache(Message, frozen=True):
    """API → engine: requests that start after this reuse nothing computed before it."""


class Drain(Message, frozen=True):
    """API → engine: finish running and queued requests; refuse those that come after this."""


class TakeRole(Message, frozen=True):
    """API → engine: finish what runs as a prefill or decode engine, then be the other one. Answered
    with `RoleTaken`."""

    role: Role
    lame_duck_seconds: float
    """How long new work is still taken: until routers know."""
    drain_seconds: float
    """After so long the prompts of other engines are given up; requests are the API process's to
    abort."""


class HandBack(Message, frozen=True):
    """API → engine: end requests that have not begun, as another engine has room for them. Answered
    with `HandedBack`."""

    number: int
    """Number of the call: `HandedBack` has it, too."""
    waits_for: Role
    """Role of the engine whose place they wait for: of this engine, or of a prefill engine."""
    requests: list[list[str]]
    """Ids of each request's choices, in the order in which the requests are to leave."""
    most: int
    """Requests that may leave."""


class TokenDelta(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Tokens of one request from one step. Array-like and not tracked by the garbage collector,
    since there is one per row and step; never in a reference cycle."""

    request_id: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    """Set on the last delta of a request only."""
    error: str | None = None
    """One line for the client, with `finish_reason` error."""
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache; on the delta with a request's first token only."""
    refusal: Refusal | None = None
    """Why the request was refused or ended, with `finish_reason` error."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """One for each of `token_ids`, if the request asked."""
    prompt_logprobs: list[TokenLogprob] | None = None
    """One for each token of the prompt but the first; on one delta of the request, if it asked."""
    queue_seconds: float | None = None
    """Time from arrival to the first step; on the delta with a request's first token only."""


class HandoverLoad(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the hand-over has done since the engine took its role."""

    recomputed: int = 0
    """Retracted requests that a decode engine prefilled itself."""
    read_bytes: int = 0
    read_seconds: float = 0.0
    reads: int = 0
    failures: dict[str, int] = {}
    """Rooms that failed, by reason."""
    draining: bool = False
    """Whether no more rooms are opened: a prefill engine may stop once it has none."""


class HostCacheLoad(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The host cache of an engine that has one, since the start but for what it holds."""

    hit_tokens: dict[str, int]
    """Prompt tokens that came back, by tier: memory, disk."""
    copied_bytes: dict[str, int]
    """By kind: saved (out of the device), loaded (back), spilled (from memory to disk)."""
    copy_seconds: dict[str, float]
    """What these copies took."""
    bad_pages: int
    """That could not be written, or were not as they had been written."""
    used_bytes: dict[str, int]
    """Now, by tier."""


class Load(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An engine's figures, and what only its /metrics show."""

    time_seconds: float
    """Unix time."""
    figures: EngineFigures
    new_token_ratio: float
    retractions: int
    """Since the start of the process; so are the next two."""
    chunk_cuts: int
    steps: dict[str, int]
    """By forward mode."""
    evicted_pages: int = 0
    """Since the start of the process: cached pages that were evicted for other requests."""
    grammar_requests: int = 0
    """Queued requests whose grammar is being compiled."""
    grammar_compilations: dict[str, int] = {}
    """Since the start, by outcome; so are the next two."""
    grammar_compile_seconds: float = 0.0
    grammars_given_up: dict[str, int] = {}
    """By reason."""
    chunk_budget_tokens: int = 0
    """Chunk budget of the last step that could compute prompt tokens; 0 without a limit."""
    chunk_budgets: dict[str, int] = {}
    """Steps since the start that computed prompt tokens, by the reason of their budget."""
    step_error_ratio: float = 0.0
    """Mean relative error of the predicted step times."""
    handover: HandoverLoad | None = None
    """Counts of prefill and decode engines; None in role mixed."""
    drafted_tokens: int = 0
    """Since the start: drafts that were verified; and those of them that answers kept."""
    accepted_tokens: int = 0
    beta: float = 0.0
    """Share of max_tokens that the next requests are expected to use."""
    average_usage: float | None = None
    """Mean share of max_tokens that the last answers used; None before there were any."""
    saved_share: float = 0.0
    """Memory that admission does not reserve, of what all of max_tokens would take."""
    host_cache: HostCacheLoad | None = None


class StepResult(Message, frozen=True):
    """Engine → API: all results of one step, in one message."""

    step: int
    mode: str
    """Forward mode: EXTEND, DECODE, MIXED, TARGET_VERIFY, SPLIT_PREFILL; IDLE for results made
    without a forward pass."""
    finished_seconds: float
    """`time.monotonic()` when the step's tokens were known; the ITL metric uses it."""
    step_seconds: float
    scheduler_seconds: float
    deltas: list[TokenDelta]
    load: Load
    predicted_seconds: float = 0.0
    """Predicted duration of the step; 0 without a prediction."""


class Heartbeat(Message, frozen=True):
    """Engine → API, while idle."""

    load: Load


class Loading(Message, frozen=True):
    """Engine → API, now and then while weights are read."""

    read_bytes: int
    total_bytes: int
    """Size of all files; a rank of several reads less."""


class LoadedAdapter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An adapter that requests may name."""

    name: str
    key: str
    """Its name and a digest of its files: equal in engines whose answers with it are equal."""


class Adapters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What there is of adapters."""

    loaded: list[LoadedAdapter] = []
    failed: dict[str, str] = {}
    """Why others are not loaded, by name."""
    file: str = ""
    """`adapters_digest` of the followed file that this comes of; empty: of none."""


class AdaptersChanged(Message, frozen=True):
    """Engine → API: requests may name other adapters from now on, or others have failed."""

    adapters: Adapters


class EngineReady(Message, frozen=True):
    """Engine → API: the model is loaded."""

    protocol_version: int
    epoch: str
    context_length_tokens: int
    kv_pool_tokens: int
    page_size_tokens: int
    max_running_requests: int
    max_queued_requests: int
    vocabulary_size: int
    kv_dtype: str
    weights: str = ""
    """Tells the model's weights apart from others under the same name."""
    bootstrap_port: int = 0
    """Port of a prefill engine to which decode engines connect."""
    pid: int = 0
    """Process id of the engine; 0 where it is a thread."""
    adapters: Adapters = Adapters()


class RoleTaken(Message, frozen=True):
    """Engine → API: it has this role from now on."""

    role: Role
    epoch: str
    """Another one: nobody takes it for the engine that it was."""
    bootstrap_port: int
    """As in `EngineReady`."""


class HandedBack(Message, frozen=True):
    """Engine → API: it has ended so many of the requests of a `HandBack`."""

    number: int
    requests: int


class EngineFailed(Message, frozen=True):
    """Engine → API: the engine process is about to exit; ends every stream with an error."""

    reason: str
    """Stable CamelCase, as in the termination message."""
    message: str


ToEngine = ApiReady | Generate | Abort | Credit | FlushCache | Drain | TakeRole | HandBack
ToApi = (
    Loading
    | EngineReady
    | AdaptersChanged
    | StepResult
    | Heartbeat
    | RoleTaken
    | HandedBack
    | EngineFailed
)
