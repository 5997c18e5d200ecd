"""The messages between API process and engine process.

msgspec structs, encoded as msgpack with a tag for each type; plain values only. Knows no socket
(see `transport.py`) and no torch. The structs are a contract: a new field has a default and raises
`PROTOCOL_VERSION`, and no field changes its meaning.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from sluice_contract.cluster.labels import Role
from sluice_contract.wire.load import EngineFigures
from sluice_contract.wire.spans import trace_id

PROTOCOL_VERSION: Final = 28

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
`out_of_memory`: the request may be at fault. With all others it is not, so another engine may run
it. `prefill_failed`: the prefill engine failed, or its pages did not arrive. `prefill_unavailable`:
the prefill engine never took the request. `handed_back`: the request had not begun, and another
engine has room."""
GrammarKind = Literal["json_schema", "regex", "ebnf", "lark"]
"""`json_schema`: as `grammar/json_schema.py` writes it. `lark`: the grammar library's own language,
for choices and tool calls."""


class WireMessage(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
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
    """Pairs of a token id and the number to add to its logit."""
    min_tokens: int = 0
    """Tokens that the answer must have before a stop token is sampled."""

    @property
    def penalises(self) -> bool:
        """Whether a penalty changes the logits."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1)


class Grammar(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The grammar an answer must follow; the engine compiles it before the request can run."""

    kind: GrammarKind
    text: str
    end_token_ids: list[int]
    """Tokens that may end the answer once the grammar is complete; at least one."""
    field: str
    """The field of the HTTP request that set the grammar; named in refusals."""
    min_tokens: int = 0
    """Tokens that the answer must have before a stop token is sampled, unless the grammar allows
    nothing else."""
    ends_late: bool = False
    """Whether the answer ends only when the grammar allows no further token."""


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Log-probability of one token, before bias, penalties, grammar and temperature. The garbage
    collector does not track these structs: they are never in a reference cycle, and a long prompt
    has very many."""

    token_id: int
    logprob: float
    rank: int
    """Rank by probability; 1: the most probable token."""
    top: list[tuple[int, float]]
    """The most probable tokens, best first, with their logprobs; as many as requested."""


class PrefillEngine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The engine that computes a request's prompt: `sluice_contract.wire.handover.PrefillRef`."""

    host: str
    port: int
    epoch: str
    name: str = ""


class ApiReady(WireMessage, frozen=True):
    """API → engine: the first message."""

    protocol_version: int


class Generate(WireMessage, frozen=True):
    """API → engine: run this prompt. Exactly one terminal `TokenDelta` answers it."""

    request_id: str
    """Unique id that the API process makes for each choice; never a client's."""
    prompt_ids: list[int]
    max_tokens: int
    """Most tokens of the answer, already limited to what the context and the pool hold."""
    sampling: Sampling
    stop_token_ids: list[int] = []
    """EOS ids and the client's; empty with `ignore_eos`. The stop token itself is delivered."""
    ignore_eos: bool = False
    """Whether EOS does not end the answer; admission then reserves all of `max_tokens`."""
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
    """Engine that computes the prompt; set in every client's request to a decode engine."""
    generated_ids: list[int] = []
    """Tokens of the answer that another engine generated. The request continues like a retracted
    one: `max_tokens`, `min_tokens` and penalties count these tokens, but neither they nor the
    prompt's logprobs are delivered."""

    adapter: str = ""
    """Key of the adapter that the tokens are generated with; empty: no adapter."""

    traceparent: str = ""
    """W3C trace context of the client's request; equal in all engines that work on it."""

    tenant: str = ""
    """Tenant of the request, which the router has signed; empty: there are no tenants."""

    moved: int = 0
    """Number of times that engines have handed the request back."""
    prompt_counted: bool = False
    """Whether an engine that handed the request back has counted its prompt as received."""
    waited_seconds: float = 0.0
    """Time between `arrival_seconds` and the arrival at this engine."""

    @property
    def label(self) -> str:
        """Text for logs: the request's id, with the trace's id if there is one."""
        trace = trace_id(self.traceparent)
        return f"{self.request_id} trace={trace}" if trace else self.request_id

    @property
    def token_ids(self) -> list[int]:
        """All tokens to prefill: the prompt and the tokens of another engine."""
        return self.prompt_ids + self.generated_ids if self.generated_ids else self.prompt_ids


class Abort(WireMessage, frozen=True):
    """API → engine: end the request (client disconnected, stop string). Unknown ids are ignored."""

    request_id: str


class Credit(WireMessage, frozen=True):
    """API → engine: the client has read `tokens` more tokens of this request."""

    request_id: str
    tokens: int


class FlushCache(WireMessage, frozen=True):
    """API → engine: forget the prefix cache; requests that start later reuse nothing computed so
    far."""


class Drain(WireMessage, frozen=True):
    """API → engine: finish running and queued requests; refuse those that come after this."""


class TakeRole(WireMessage, frozen=True):
    """API → engine: finish the work of the present role, prefill or decode, then take the other
    one. The engine replies `RoleTaken`."""

    role: Role
    lame_duck_seconds: float
    """Time for which new work is still accepted, so that routers learn of the change."""
    drain_seconds: float
    """Time after which the engine gives up prompts that it computes for other engines. It does not
    give up clients' requests; the API process aborts them."""


class HandBack(WireMessage, frozen=True):
    """API → engine: end requests that have not begun, because another engine has room for them. The
    engine replies `HandedBack`."""

    number: int
    """Number of the call, repeated in `HandedBack`."""
    waits_for: Role
    """Role of the engine for which the requests wait: this engine's role, or prefill."""
    requests: list[list[str]]
    """Ids of each request's choices, in the order in which requests should leave."""
    most: int
    """Number of requests that may leave."""


class TokenDelta(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Tokens of one request from one step. There may be one for each row and step, so it is encoded
    as an array, and the garbage collector does not track it; it is never in a reference cycle."""

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
    """One for each of `token_ids`, if the request asked for logprobs."""
    prompt_logprobs: list[TokenLogprob] | None = None
    """One for each token of the prompt except the first; on one delta of the request, if it asked
    for them."""
    queue_seconds: float | None = None
    """Time from arrival to the first step; on the delta with a request's first token only."""


class PlainTokens(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One token of each of many requests, about which nothing else is to be reported: most results
    of most steps. Two columns cost less than an object for each row."""

    request_ids: list[str]
    token_ids: list[int]
    """One for each of `request_ids`."""

    @property
    def deltas(self) -> list[TokenDelta]:
        """The tokens in objects of their own."""
        columns = zip(self.request_ids, self.token_ids, strict=True)
        return [TokenDelta(request_id, (token,)) for request_id, token in columns]


class HandoverLoad(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Counts of the hand-over since the engine took its role."""

    recomputed: int = 0
    """Retracted requests that a decode engine prefilled itself."""
    read_bytes: int = 0
    read_seconds: float = 0.0
    reads: int = 0
    failures: dict[str, int] = {}
    """Rooms that failed, by reason."""
    draining: bool = False
    """Whether new rooms are refused; a draining prefill engine may stop once it has no rooms."""


class HostCacheLoad(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Figures of an engine's host cache, counted since the start, except `used_bytes`."""

    hit_tokens: dict[str, int]
    """Prompt tokens that were loaded back, by tier: memory, disk."""
    copied_bytes: dict[str, int]
    """Bytes copied, by kind: saved (from the device), loaded (back to it), spilled (from memory to
    disk)."""
    copy_seconds: dict[str, float]
    """Seconds that the copies of each kind took."""
    bad_pages: int
    """Pages that could not be written, or whose content had changed when they were read."""
    used_bytes: dict[str, int]
    """Bytes in use now, by tier."""


class Load(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An engine's figures of the load report, and others that only its /metrics show."""

    time_seconds: float
    """Unix time."""
    figures: EngineFigures
    new_token_ratio: float
    retractions: int
    """Requests retracted since the start of the process."""
    chunk_cuts: int
    """Prompts cut into chunks since the start of the process."""
    steps: dict[str, int]
    """Steps since the start of the process, by forward mode."""
    evicted_pages: int = 0
    """Cached pages evicted for other requests since the start of the process."""
    grammar_requests: int = 0
    """Queued requests whose grammar is being compiled."""
    grammar_compilations: dict[str, int] = {}
    """Grammars compiled since the start, by outcome."""
    grammar_compile_seconds: float = 0.0
    """Seconds spent on compiling grammars since the start."""
    grammars_given_up: dict[str, int] = {}
    """Requests whose grammar was given up since the start, by reason."""
    chunk_budget_tokens: int = 0
    """Chunk budget of the last step that could compute prompt tokens; 0 without a limit."""
    chunk_budgets: dict[str, int] = {}
    """Steps since the start that computed prompt tokens, by the reason of their budget."""
    step_error_ratio: float = 0.0
    """Mean relative error of the predicted step times."""
    handover: HandoverLoad | None = None
    """Counts of prefill and decode engines; None in role mixed."""
    drafted_tokens: int = 0
    """Drafts verified since the start; `accepted_tokens` are those that answers kept."""
    accepted_tokens: int = 0
    beta: float = 0.0
    """Share of max_tokens that the next requests are expected to use."""
    average_usage: float | None = None
    """Mean share of max_tokens that recent answers used; None before the first answer."""
    saved_share: float = 0.0
    """Fraction of the memory for all of max_tokens that admission does not reserve."""
    host_cache: HostCacheLoad | None = None


class StepResult(WireMessage, frozen=True):
    """Engine → API: all results of one step, in one message."""

    step: int
    mode: str
    """Forward mode: EXTEND, DECODE, MIXED, TARGET_VERIFY, SPLIT_PREFILL; IDLE for results made
    without a forward pass."""
    finished_seconds: float
    """`time.monotonic()` when the step's tokens were known; the ITL metric uses it."""
    step_seconds: float
    scheduler_seconds: float
    special: list[TokenDelta]
    """Results that are more than one token; they come before `plain` ones of their requests."""
    load: Load
    predicted_seconds: float = 0.0
    """Predicted duration of the step; 0 without a prediction, or if `load` is repeated."""
    plain: PlainTokens = PlainTokens([], [])

    @property
    def deltas(self) -> list[TokenDelta]:
        """All results, in order."""
        return self.special + self.plain.deltas


class Heartbeat(WireMessage, frozen=True):
    """Engine → API: the engine is alive; sent while it is idle."""

    load: Load


class Loading(WireMessage, frozen=True):
    """Engine → API: progress, sent now and then while weights are read."""

    read_bytes: int
    total_bytes: int
    """Size of all files; one of several ranks reads less."""


class LoadedAdapter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An adapter that requests may name."""

    name: str
    key: str
    """Name with a digest of the files; equal in engines whose answers with this adapter are
    equal."""


class Adapters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The engine's adapters, loaded and failed."""

    loaded: list[LoadedAdapter] = []
    failed: dict[str, str] = {}
    """Why other adapters could not be loaded, by name."""
    file: str = ""
    """`adapters_digest` of the followed file; empty without a file."""


class AdaptersChanged(WireMessage, frozen=True):
    """Engine → API: the adapters that requests may name, or those that failed, have changed."""

    adapters: Adapters


class EngineReady(WireMessage, frozen=True):
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
    """Digest that distinguishes the model's weights from others under the same name."""
    bootstrap_port: int = 0
    """Port of a prefill engine to which decode engines connect."""
    pid: int = 0
    """Process id of the engine; 0 if the engine is a thread."""
    adapters: Adapters = Adapters()
    start: dict[str, float] = {}
    """Seconds of the start by `sluice_contract.wire.start.Phase`."""


class RoleTaken(WireMessage, frozen=True):
    """Engine → API: the engine has this role from now on."""

    role: Role
    epoch: str
    """New epoch, so that nobody mistakes the engine for what it was before."""
    bootstrap_port: int
    """As in `EngineReady`."""


class HandedBack(WireMessage, frozen=True):
    """Engine → API: how many requests of a `HandBack` were ended."""

    number: int
    requests: int


class EngineFailed(WireMessage, frozen=True):
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
