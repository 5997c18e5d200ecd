"""Each alert fires when it should, not before its time, and is silent when nothing is wrong: as
`promtool test rules` computes it from made-up series."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
from sluice_operator.api.scaling import Slo
from sluice_operator.manifests.monitoring import slo_groups

from dashboards.alerts import ALERTS
from dashboards.rules import groups
from tests.dashboards.prometheus import promtool

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("dashboards")]

S: Final = 'namespace="a",serving_sluice_dev_service="chat"'
N: Final = 'namespace="a",name="chat"'
P: Final = f'{S},serving_sluice_dev_role="prefill",pod="p"'
SECOND: Final = P.replace('pod="p"', 'pod="q"')
D: Final = f'{S},serving_sluice_dev_role="decode",pod="d"'
ANSWERS: Final = f'sluice_router_requests_total{{{S},code="200",outcome="complete"}}'
TTFT: Final = f"sluice_time_to_first_token_seconds_%s{{{D}%s}}"
FIRST: Final = f'sluice_router_first_byte_seconds_%s{{{S},pod="r",answer="stream"%s}}'
ITL: Final = f"sluice_inter_token_seconds_%s{{{D}%s}}"
NOT_UPDATED: Final = f'sluice_operator_condition{{{N},type="Updated",status="False",reason="Why"}}'
PROGRESSING: Final = (
    f'sluice_operator_condition{{{N},type="Progressing",status="True",reason="%s"}}'
)
STALLED: Final = f'sluice_operator_condition{{{N},type="Stalled",status="True",reason="%s"}}'
Case = tuple[tuple[str, str | None, str | None], ...]
"""Series, and what it is a minute when the alert is to fire, and when it is not; None: absent."""


def condition(kind: str, wrong: str, reason: str = "Why", right_is: str | None = None) -> Case:
    otherwise = right_is or ("False" if wrong == "True" else "True")
    series = f'sluice_operator_condition{{{N},type="{kind}",status="%s",reason="{reason}"}}'
    right = (series % otherwise).replace(reason, "Fine")
    return ((series % wrong, "1x500", None), (right, None, "1x500"))


def missed(histogram: str, bounds: dict[str, tuple[str, str]]) -> Case:
    """A hundred a minute, of which the buckets have so many; then those of a calm time."""
    return (
        (histogram % ("count", ""), "0+100x500", "0+100x500"),
        *((histogram % ("bucket", f',le="{le}"'), *grows) for le, grows in bounds.items()),
    )


CASES: Final[dict[str, Case]] = {
    "SluiceRequestsFail": (
        (ANSWERS, "0+98x500", "0+199x500"),
        (ANSWERS.replace("200", "503"), "0+2x500", "0+1x500"),
    ),
    "SluiceStreamsCut": (
        (ANSWERS, "0+98x500", "0+98x500"),
        (ANSWERS.replace("complete", "cut"), "0+1x500", "0x500"),
    ),
    "SluiceRequestsLost": (
        (f'sluice_router_ledger_total{{{S},fate="lost"}}', "0+1x500", "7x500"),
        (f'sluice_router_ledger_total{{{S},fate="refused"}}', "0+1x500", "0+1x500"),
    ),
    "SluiceNoEngineReady": (
        (f'sluice_router_engines{{{S},role="decode",state="ready"}}', "0x500", "0x500"),
        (f"sluice_router_waiting_requests{{{S}}}", "3x500", "0x500"),
    ),
    "SluicePrefillQueueLong": (
        (f"sluice_queued_requests{{{P}}}", "150x500", "150x500"),
        (f"sluice_queued_requests{{{SECOND}}}", "60x500", "40x500"),
    ),
    "SluiceDecodeQueueLong": ((f"sluice_queued_requests{{{D}}}", "501x500", "499x500"),),
    "SluiceHandoverSlow": (
        (f"sluice_handover_read_seconds_total{{{D}}}", "0+6x500", "0+4x500"),
        (f"sluice_handover_reads_total{{{D}}}", "0+100x500", "0+100x500"),
    ),
    "SluiceHandoversFail": (
        (f'sluice_handover_failures_total{{{D},reason="read"}}', "0+2x500", "0+1x500"),
        (f"sluice_handover_reads_total{{{D}}}", "0+100x500", "0+101x500"),
    ),
    "SluiceKvPoolFull": ((f"sluice_token_usage_ratio{{{D}}}", "0.95x500", "0.85x500"),),
    "SluiceRunningNearLimit": (
        (f"sluice_running_requests{{{D}}}", "81x500", "79x500"),
        (f"sluice_max_running_requests{{{D}}}", "100x500", "100x500"),
    ),
    "SluiceRetractions": (
        (f"sluice_retractions_total{{{D}}}", "0+11x500", "0+9x500"),
        (f'sluice_requests_total{{{D},outcome="stop"}}', "0+100x500", "0+100x500"),
    ),
    "SluiceTargetDown": ((f"up{{{D}}}", "0x500", "1x500"),),
    "SluiceNotReady": condition("Ready", "False"),
    "SluiceStalled": (
        *condition("Stalled", "True"),
        (STALLED % "CanaryWorse", None, "1x500"),
        (STALLED % "CanaryLate", None, "1x500"),
    ),
    "SluiceNotUpdated": (
        (NOT_UPDATED, "1x500", "1x500"),
        (PROGRESSING % "RollingOut", "1x500", None),
        (PROGRESSING % "CanaryAsleep", None, "1x500"),
    ),
    "SluiceRolloutHalted": condition("Progressing", "False", "CanaryWorse"),
    "SluiceCanaryStalled": (
        (PROGRESSING % "CanaryStalled", "1x500", None),
        (PROGRESSING % "CanaryStep", None, "1x500"),
    ),
    "SluiceCanaryWaits": (
        (PROGRESSING % "CanaryWaits", "1x1500", None),
        (PROGRESSING % "CanaryStep", None, "1x1500"),
    ),
    "SluiceScalingInactive": condition("ScalingActive", "False", "MetricsMissing"),
    "SluiceAcceleratorUnverified": condition("AcceleratorVerified", "False", right_is="Unknown"),
    "SluiceCapacityBlocked": condition("Updated", "False", "Unschedulable"),
    "SluiceEnginesMissing": (
        (f'sluice_operator_pool_replicas{{{N},role="mixed",state="desired"}}', "3x500", "3x500"),
        (f'sluice_operator_pool_replicas{{{N},role="mixed",state="ready"}}', "2x500", "3x500"),
    ),
    "SluiceReconcileErrors": (
        (
            'sluice_operator_reconcile_errors_total{kind="EnginePool",error="ApiError"}',
            "0+1x500",
            "0+0.1x500",
        ),
    ),
    "SluiceOperatorBlocked": (
        (
            'sluice_operator_blocked_kinds{kind="Pod",namespace="",verb="list"}',
            "1x500",
            None,
        ),
    ),
    "SluiceOperatorDown": (("sluice_operator_leader", "0x500", "1x500"),),
    # They wait in the router: engines see nothing of it.
    "SluiceTtftBudgetBurn": (
        *missed(FIRST, {"0.5": ("0+20x500", "0+60x500"), "1.0": ("0+30x500", "0+90x500")}),
        *missed(TTFT, dict.fromkeys(("0.5", "1.0"), ("0+100x500", "0+100x500"))),
    ),
    "SluiceItlBudgetBurn": missed(ITL, {"0.05": ("0+20x500", "0+71x500")}),
    "SluiceErrorBudgetBurn": (
        (ANSWERS, "0+98x500", "0+1000x500"),
        (ANSWERS.replace("200", "429"), "0+2x500", "0+1x500"),
    ),
}
SLOWLY: Final[dict[str, Case]] = {
    "SluiceTtftBudgetBurn": missed(
        TTFT, {"0.5": ("0+50x500", "0+70x500"), "1.0": ("0+50x500", "0+71x500")}
    ),
    "SluiceItlBudgetBurn": missed(ITL, {"0.05": ("0+50x500", "0+71x500")}),
    "SluiceErrorBudgetBurn": (
        (ANSWERS, "0+99x500", "0+1000x500"),
        (ANSWERS.replace("200", "429"), "0+1x500", "0+1x500"),
    ),
}
"""Too slowly for the fast pace, fast enough for the slow one."""
SLO: Final = Slo.model_validate({"ttftMilliseconds": 800, "itlMilliseconds": 50})
SLO_GROUPS: Final = slo_groups("a", "chat", SLO)
RULES: Final = {"groups": groups()["groups"] + SLO_GROUPS}
LASTING: Final = {
    rule["alert"]: rule["for"]
    for group in reversed(RULES["groups"])
    for rule in reversed(group["rules"])
    if rule.get("labels", {}).get("severity")
}
"""Of alerts that there are twice, the faster one's."""


def test_there_is_a_case_for_every_alert() -> None:
    assert CASES.keys() == LASTING.keys()
    assert {alert.name for alert in ALERTS} <= CASES.keys()


def test_each_fires_in_time_and_is_silent_otherwise(tmp_path: Path) -> None:
    files = []
    for name, case in CASES.items():
        tests = cases_of(name, case, LASTING[name])
        if name in SLOWLY:
            tests += cases_of(name, SLOWLY[name], "15m", ',window="6h"')
        rules, document = tmp_path / f"{name}.rules.json", tmp_path / f"{name}.json"
        rules.write_text(json.dumps({"groups": [{"name": name, "rules": rules_of(name)}]}))
        files.append(str(document))
        document.write_text(json.dumps({"rule_files": [rules.name], "tests": tests}))
    result = promtool("test", "rules", *files)
    assert result.returncode == 0, result.stdout + result.stderr


def rules_of(name: str) -> list[dict[str, Any]]:
    """The alert, and what is recorded for it; each by itself, since promtool takes its time."""
    alerts = [rule for group in RULES["groups"] for rule in group["rules"] if "alert" in rule]
    recorded = [rule for group in SLO_GROUPS for rule in group["rules"] if "record" in rule]
    mine = [rule for rule in alerts if rule["alert"] == name]
    return (recorded if name in SLOWLY else []) + mine


def cases_of(name: str, case: Case, lasting: str, also: str = "") -> list[dict[str, Any]]:
    """Fires in time and not a minute before; is silent for an hour. `also`: labels of the alert."""
    minutes = int(lasting.removesuffix("m"))
    fires, silent = (
        [{"series": each[0], "values": each[place]} for each in case if each[place] is not None]
        for place in (1, 2)
    )
    title = f"{name}{also}"
    expr = f'max(ALERTS{{alertname="{name}",alertstate="firing"{also}}})'
    times = [(max(0, minutes - 1), False), (minutes + 20, True)]
    return [
        to_test(f"{title} fires", fires, times, expr),
        to_test(f"{title} is silent", silent, [(60, False)], expr),
    ]


def to_test(
    title: str, series: list[dict[str, str | None]], times: list[tuple[int, bool]], expr: str
) -> dict[str, Any]:
    firing = [{"labels": "{}", "value": 1}]
    return {
        "name": title,
        "interval": "1m",
        "input_series": series,
        "promql_expr_test": [
            {"expr": expr, "eval_time": f"{time}m", "exp_samples": firing if fires else []}
            for time, fires in times
        ],
    }
