"""The pages of the two kinds: every field of spec and status, from the types of the CRDs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from sluice_contract.config import supported as of_engine
from sluice_operator.api.pool import EnginePoolSpec
from sluice_operator.api.schema import inlined_schema
from sluice_operator.api.service import NAME_RULES, InferenceServiceSpec
from sluice_operator.api.status import EnginePoolStatus, InferenceServiceStatus
from sluice_operator.manifests.engine import PROCESS_TEMPLATE_FIELDS
from sluice_operator.validation import errors as of_service

from docs.generate.fields import Notes, Row, Section, allowed_by, rules_of, sections_of
from docs.generate.markdown import GENERATED, table
from docs.generate.schema_words import Schema

TEMPLATE: Final = "spec.template"
AFFINITY: Final = f"{TEMPLATE}.affinity"
OPENING: Final = (
    "spec.model", "spec.accelerator", TEMPLATE, f"{TEMPLATE}.env[]", f"{TEMPLATE}.volumes[]",
    f"{TEMPLATE}.sidecars[]", AFFINITY, "spec.engine", "spec.slo", "spec.autoscaling",
    "spec.prefill", "spec.rollout", "spec.router",
)  # fmt: skip
EXPLAINED: Final = {
    name: f"configuration.md#{name.lower()}"
    for name in ("schedulingPolicy", "prefixEvictionPolicy", "toolCallFormat", "reasoningFormat")
}

SHAPE: Final = """\
apiVersion: serving.sluice.dev/v1alpha1
kind: InferenceService
metadata: {name: qwen3}
spec:
  model: {uri: "hf://Qwen/Qwen3-8B"}   # what is served: the only field that is required
  replicas: 3                          # engines; or autoscaling: {minReplicas: 1, maxReplicas: 8}
  accelerator: {product: NVIDIA-A100-SXM4-80GB, count: 1}   # GPUs of one engine; left out: CPUs
  resources: {limits: {memory: 64Gi}}  # CPU and memory of one engine
  template: {priorityClassName: serving}                    # additions to the engines' pods
  engine: {schedulingPolicy: lpm}      # settings of the engines; the others are resolved
  slo: {ttftMilliseconds: 1000, itlMilliseconds: 50}        # promise of latency
  autoscaling: {gpuBudget: 16}         # most GPUs of the service; how engines follow the load
  prefill:                             # there: this pool computes prompts, the engines above decode
    replicas: 2                        # or autoscaling: {minReplicas: 1, maxReplicas: 4}
    accelerator: {product: NVIDIA-H100-80GB-HBM3}
    resources: {limits: {memory: 96Gi}}
    template: {}                       # none of spec.template; what is left out here is inherited
    engine: {chunkSize: 16384}         # goes before spec.engine, key by key
  rollout: {strategy: Surge}           # how a new revision replaces the old one
  router: {replicas: 2}                # the front door: API keys, tenants, CORS, HTTPRoute
  tracing: {endpoint: "http://collector.monitoring.svc:4318"}
  metrics: {compatibility: vLLM}       # names of metrics beside our own
  paused: false                        # true: the operator writes nothing but status
"""
"""Every field of the spec that is at its top level, and of `prefill`."""

SERVICE_HEAD: Final = f"""\
# InferenceService

`apiVersion: serving.sluice.dev/v1alpha1`, `kind: InferenceService`, short name `infsvc`,
namespaced. The top level of the spec is the pool of engines; a section `prefill` makes it two:

```yaml
{SHAPE}```

A spec may be as short as `{{model: {{uri}}}}`, one engine, or `{{model: {{uri}}, prefill: {{}}}}`,
one that computes prompts and one that decodes.

**Inheritance.** `accelerator`, `resources` and `template` that `prefill` leaves out are those of
the top level, each whole. Keys of `prefill.engine` go before those of `engine`; a section such as
`hostCache` is replaced whole. `kvTransfer` counts for both pools: it is in `engine` alone, and
only beside `prefill`. `prefill:` with nothing behind it is refused.

**What a cluster demands of every pod** is said once. Routers whose `router.template` leaves it out
have the `imagePullSecrets` and `tolerations` of any pool's template, and the `priorityClassName`
that all pools agree on; an empty list in `router.template` is none. What is about engines and
their GPUs is not inherited: node selector, affinity, runtime class, scheduler, labels, annotations
and containers. Jobs that bring models have
[rules of their own](../how-to/models-from-a-hub.md#where-it-is-kept). A sidecar of routers sees
their token, which may read the namespace's EndpointSlices and nothing else.

**Empty keys.** A key with nothing behind it, as `engine:` or `tolerations:` of a chart, counts as
left out, in server-side apply (Helm 4, Flux, Argo CD) as in client-side apply. The API server
refuses an empty `prefill:`. In server-side apply it also refuses empty `replicas:` of the top
level, empty keys with a fixed set of words (`dtype:`) and empty keys of maps (`limits: {{cpu: }}`).

**Numbers.** Without any there is one engine in each pool. `prefill` without a number of its own
has 1 beside `replicas`, and the top level's `minReplicas` and `maxReplicas` beside autoscaling.
With `gpuBudget`, `prefill` and no number anywhere the operator chooses both
([how](../how-to/split-prefill-from-decode.md#let-the-operator-choose)). `replicas: 0` is 0 in both
pools, whatever `prefill.replicas` says.

`sluice plan -f service.yaml` shows the result of a file, without a cluster. It refuses what
`kubectl apply` would refuse, each mistake on a line with the value and what is allowed. How
engines, routers and the operator then behave is described in [scheduling](scheduling.md),
[router](router.md) and [operator](operator.md). This page has every field. On a cluster
`kubectl explain infsvc.spec.engine` has names, types and meanings, without the ranges and rules.

**Default** is what holds when a field is left out; where there is none, nothing does. Of the
settings of engines `status.resolved` shows the values in use, each with where it is from.
**Allowed** is what the API server takes; unknown fields are refused by `kubectl`, and dropped
when another client sends them. **So far only** and **not yet** mark what the API server takes and
this version does not have.
"""

CHANGES: Final = (
    (
        "`replicas` of either pool, `router.replicas`, `router.route`, `paused`",
        "no engine restarts; engines that are too many finish their streams first",
    ),
    (
        "`model.adapters`",
        "no engine restarts: engines load and unload adapters while they serve. The first list, "
        "the first adapter on a claim and the last one on it make another revision",
    ),
    (
        "`model.resources`",
        "another revision where each engine brings the model itself; else no engine restarts, and "
        "a Job that runs is made again",
    ),
    (
        "`router.auth`, where it comes or goes",
        "routers are replaced, and engines by another revision: with API keys they serve the "
        "routers only",
    ),
    (
        "the rest of `router`",
        "the routers are replaced one by one; no engine restarts",
    ),
    ("`engine.drainSeconds`", "routers are replaced, and engines by another revision"),
    (
        "`engine.startupSeconds`; of a `template` what is not named below",
        "the same revision: its pods are replaced one by one, a new one before an old one leaves; "
        "so are routers that inherit `imagePullSecrets`, `tolerations` or `priorityClassName`",
    ),
    (
        "the rest of `model`, `slo`, the rest of `engine`; `accelerator`, `resources`, "
        f"and of a `template` {', '.join(f'`{name}`' for name in PROCESS_TEMPLATE_FIELDS)}",
        "another revision: new engines start next to the former ones, which finish their streams "
        "and leave once the new ones are ready",
    ),
    (
        "`prefill`, where it comes or goes",
        "engines of the new kind start next to the former ones, which finish their streams and "
        "leave once the new ones are ready",
    ),
    ("`metadata.name`", "not possible: make another object"),
)
IMMUTABLE: Final = """
No field of the spec is immutable. A change that is refused writes nothing but status, and the
engines keep serving with the former settings ([conditions](operator.md#conditions)).

**Another `model.uri` is another name to clients** where `model.name` is left out. The name is then
the last part of the URI, and a client that asks for the former name is answered 404. Set the name,
and the URI may change: [upgrade a model](../how-to/upgrade-a-model.md).
"""

NOT_YET: Final = """\
## Taken by the API server, not implemented

Such a spec is stored and not carried out: `Updated` is False with reason `NotImplemented`, and its
message names the field, the value and what is allowed. `sluice plan` says the same beforehand.
"""

POOL_HEAD: Final = """\
# EnginePool

`apiVersion: serving.sluice.dev/v1alpha1`, `kind: EnginePool`, short name `epool`, namespaced. One
pool of equal engines: `NAME-ROLE` of the InferenceService `NAME`. **The operator writes it**. What
somebody else changes in its spec is taken back, with an event that names the field of the
[InferenceService](inferenceservice.md) to change instead. Its status shows the revisions of a
roll-out: `kubectl get epool`, `kubectl explain epool.status`.
"""


def service_page() -> str:
    """docs/reference/inferenceservice.md."""
    spec, status = inlined_schema(InferenceServiceSpec), inlined_schema(InferenceServiceStatus)
    notes = Notes(_so_far(), EXPLAINED)
    told = dict[str, str]()
    lines = [GENERATED, SERVICE_HEAD, "## What a change does", ""]
    lines += [*table(("change of", "what happens"), CHANGES), IMMUTABLE]
    lines += [NOT_YET, *_so_far_table(), ""]
    for section in sections_of(spec, "spec", OPENING, notes, told):
        named = tuple(_name_rows()) if section.path == "spec" else ()
        lines += _spec_section(Section(section.path, named + section.rows))
    for section in sections_of(status, "status", (), notes, told):
        lines += _status_section(section)
    lines += _rules(spec, ((rule.field, rule.allowed, rule.cel) for rule in NAME_RULES))
    return "\n".join(lines) + "\n"


def pool_page() -> str:
    """docs/reference/enginepool.md."""
    told = dict[str, str]()
    service = inlined_schema(InferenceServiceSpec)
    for _ in sections_of(service, "spec", OPENING, Notes(), told):
        pass
    told = {part: _linked(place) for part, place in told.items()}
    lines = [GENERATED, POOL_HEAD]
    for section in sections_of(inlined_schema(EnginePoolSpec), "spec", (), Notes(), told):
        lines += _spec_section(section)
    for section in sections_of(inlined_schema(EnginePoolStatus), "status", (), Notes(), told):
        lines += _status_section(section)
    return "\n".join(lines).rstrip("\n") + "\n"


def _name_rows() -> Iterator[Row]:
    for rule in NAME_RULES:
        yield Row(rule.field, "string", "required", rule.allowed, "Name of the object.")


def _linked(place: str) -> str:
    if place.startswith("["):
        return place.replace("(#", "(inferenceservice.md#")
    return f"{place} of the [InferenceService](inferenceservice.md)"


def _so_far() -> dict[str, str]:
    """The only values that this version allows, by path."""
    service = {row.field: row.allowed for row in of_service.ROWS}
    engine = {f"spec.engine.{key}": words for key, words in of_engine.allowed_so_far().items()}
    return {**service, **engine}


def _so_far_table() -> Iterator[str]:
    rows = ((f"`{path}`", words) for path, words in {**_so_far(), **of_service.CONDITIONAL}.items())
    return table(("field", "allowed so far"), rows)


def _spec_section(section: Section) -> Iterator[str]:
    yield from (f"## {section.path}", "")
    if below := _left_off(section):
        yield from (f"Paths below `{below.rstrip('.')}`; as in any pod.", "")
    rows = (
        (
            f"`{row.path.removeprefix(_left_off(section))}`",
            row.type,
            row.default,
            row.allowed,
            row.meaning,
        )
        for row in section.rows
    )
    yield from table(("field", "type", "default", "allowed", "what it is"), rows)
    yield ""


def _left_off(section: Section) -> str:
    """The beginning that all paths of a section have in common."""
    return f"{TEMPLATE}." if section.path == AFFINITY else ""


def _status_section(section: Section) -> Iterator[str]:
    yield from (f"## {section.path}", "")
    yield from ("What each condition says: [the operator](operator.md#conditions).", "")
    rows = ((f"`{row.path}`", row.type, row.meaning) for row in section.rows)
    yield from table(("field", "type", "what it says"), rows)
    yield ""


def _rules(spec: Schema, first: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    yield from ("## Rules across fields", "")
    yield "As the API server evaluates them, in CEL: `self` is the object that holds the field."
    yield "A rule of several fields stands here with the first of them."
    found = ((path, allowed_by(rule), rule["rule"]) for path, rule in rules_of(spec, "spec"))
    for path, message, cel in (*first, *found):
        yield from ("", f"- `{path}`: {message}", f"  `{cel}`")
