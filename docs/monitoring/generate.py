"""Writes the Grafana dashboards and the Prometheus rules beside it: `python docs/monitoring/generate.py`.

They are committed, so that they can be taken as they are; a test holds that they are what this writes, and that every
metric they name exists.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent

GROUP = "brooq"
WIDTH, HEIGHT = 12, 8
"""Of a panel, in the 24 columns of a dashboard."""


@dataclass(frozen=True)
class Alert:
    """One rule of Prometheus.

    Attributes:
        lasts: for how long it must hold before it fires.
        summary: what is so, in a line.
        description: what that means and what to do.
    """

    name: str
    expression: str
    lasts: str
    severity: str
    summary: str
    description: str


ALERTS = (
    Alert(
        "BrooqQueueStalled",
        "max by (topic) (brooq_ready_oldest_age_seconds) > 300",
        "10m",
        "warning",
        "Topic {{ $labels.topic }}: the oldest due job has waited for {{ $value | humanizeDuration }}",
        "Jobs come faster than they are run, or nobody runs them. Ask `brooq-sa why` about one of them, and look at the"
        " free slots of the workers.",
    ),
    Alert(
        "BrooqJobsDying",
        'sum by (topic) (increase(brooq_settle_total{outcome="dead"}[10m])) > 0',
        "5m",
        "warning",
        "Topic {{ $labels.topic }}: jobs fail on their last attempt",
        "`brooq-sa jobs --state dead` shows their errors. Once the cause is mended, `brooq-sa retry` sends them round"
        " again.",
    ),
    Alert(
        "BrooqHungHandlers",
        "increase(brooq_hung_workers_total[15m]) > 0",
        "0m",
        "critical",
        "Topic {{ $labels.topic }}: a handler did not stop when it was told to",
        "Its slot was replaced, but its thread is still there and holds what it holds. Restart the worker; give the"
        ' handler time limits of its own, or isolation="process".',
    ),
    Alert(
        "BrooqLeasesLost",
        "increase(brooq_lease_lost_total[15m]) > 0",
        "0m",
        "info",
        "Topic {{ $labels.topic }}: an attempt lost its lease",
        "The job runs again, or was canceled; the late outcome was refused. If it happens often, handlers keep the"
        " process from renewing, or the lease is too short for this network.",
    ),
    Alert(
        "BrooqTargetDown",
        'up{job="brooq"} == 0 or absent(up{job="brooq"})',
        "2m",
        "critical",
        "{{ if $labels.instance }}{{ $labels.instance }} does not serve its metrics"
        "{{ else }}There is no worker to scrape{{ end }}",
        "The worker process is gone, or its HTTP_ADDR is not where Prometheus looks; or no job of its configuration is"
        " named brooq.",
    ),
    Alert(
        "BrooqStartsLate",
        "histogram_quantile(0.95, sum by (topic, le) (rate(brooq_ready_to_start_seconds_bucket[10m]))) > 30",
        "10m",
        "warning",
        "Topic {{ $labels.topic }}: one job in twenty starts more than {{ $value | humanizeDuration }} after it is due",
        "The objective is 30 s. Start more workers, or give this topic workers of its own.",
    ),
    Alert(
        "BrooqUnknownTopics",
        "max(brooq_unknown_topics) > 0",
        "15m",
        "warning",
        "{{ $value }} topics have waiting jobs that no worker here knows",
        "A class was renamed or removed while jobs of it waited, or a deploy has not reached the workers. The jobs wait"
        " untouched; the log line unknown_topics names them.",
    ),
    Alert(
        "BrooqCrashSuspects",
        "increase(brooq_crash_suspects_total[1h]) > 0",
        "0m",
        "critical",
        "Topic {{ $labels.topic }}: a job keeps crashing its workers",
        "The log line crash_suspect names it. Cancel it, or set max_crashes on its class, or run it with"
        ' isolation="process".',
    ),
    Alert(
        "BrooqPartDown",
        "min by (instance, part) (brooq_worker_part_up) == 0",
        "5m",
        "critical",
        "{{ $labels.instance }}: {{ $labels.part }} has failed for five minutes",
        "The log line {{ $labels.part }}_failed says of what. Running jobs go on; their leases run out if it is the"
        " heartbeat.",
    ),
    Alert(
        "BrooqHeartbeatsLate",
        "histogram_quantile(0.99, sum by (instance, le) (rate(brooq_heartbeat_late_seconds_bucket[10m]))) > 10",
        "10m",
        "warning",
        "{{ $labels.instance }}: heartbeats come {{ $value | humanizeDuration }} late",
        "Handlers keep Python from running other threads, the machine is overloaded, or the database is slow. Leases"
        " are about to be lost.",
    ),
    Alert(
        "BrooqTableBloat",
        "max(brooq_table_dead_rows) > 100000 and max(brooq_table_dead_rows) > 0.5 * max(brooq_table_live_rows)",
        "30m",
        "warning",
        "The job table has {{ $value | humanize }} dead rows",
        "Autovacuum does not keep up, or something holds it back: see BrooqOldTransaction.",
    ),
    Alert(
        "BrooqOldTransaction",
        "max(brooq_oldest_transaction_age_seconds) > 3600",
        "5m",
        "warning",
        "A transaction has been open for {{ $value | humanizeDuration }}, and holds vacuum back",
        "Find it in pg_stat_activity by its xact_start, or in pg_prepared_xacts, and end it. Claims get slower the"
        " longer it lasts.",
    ),
)


@dataclass(frozen=True)
class Panel:
    """One graph.

    Attributes:
        queries: PromQL, and the legend of its series.
        unit: as Grafana names it.
    """

    title: str
    queries: Sequence[tuple[str, str]]
    unit: str = "short"
    description: str = ""
    is_stacked: bool = False


def _quantiles(metric: str, by: str, selector: str) -> Sequence[tuple[str, str]]:
    labels = f"{by}, le" if by else "le"
    legend = f" {{{{{by}}}}}" if by else ""
    return tuple(
        (
            f"histogram_quantile(0.{share}, sum by ({labels}) (rate({metric}_bucket{selector}[$__rate_interval])))",
            f"p{share}{legend}",
        )
        for share in (50, 95, 99)
    )


T = '{topic=~"$topic"}'
W = '{instance=~"$instance"}'
PARTS = ("sum", "count")
"""Of a histogram, whose quotient is the mean."""

OVERVIEW = (
    Panel(
        "Oldest due job",
        [("max by (topic) (brooq_ready_oldest_age_seconds)", "{{topic}}")],
        "s",
        "How far behind the queue is. 0 when nothing is due.",
    ),
    Panel(
        "Jobs by state",
        [("max by (state) (sum by (instance, state) (brooq_jobs))", "{{state}}")],
        description="Each worker sees the whole table, so the largest is taken and not the sum.",
    ),
    Panel(
        "Outcomes a second",
        [("sum by (outcome) (rate(brooq_settle_total[$__rate_interval]))", "{{outcome}}")],
        "ops",
        is_stacked=True,
    ),
    Panel(
        "Enqueued and claimed a second",
        [
            ("sum(rate(brooq_enqueued_total[$__rate_interval]))", "enqueued"),
            ("sum(rate(brooq_claimed_total[$__rate_interval]))", "claimed"),
        ],
        "ops",
    ),
    Panel("From due to started", _quantiles("brooq_ready_to_start_seconds", "", ""), "s"),
    Panel("Slots", [("sum by (state) (brooq_worker_slots)", "{{state}}")], is_stacked=True),
    Panel(
        "What wants a look",
        [
            ("max(brooq_unknown_topics)", "unknown topics"),
            ("sum(increase(brooq_crash_suspects_total[1h]))", "crash suspects, 1 h"),
            ("sum(increase(brooq_hung_workers_total[1h]))", "hung handlers, 1 h"),
            ("sum(increase(brooq_lease_lost_total[1h]))", "lost leases, 1 h"),
            ("sum(increase(brooq_reaped_total[1h]))", "reaped, 1 h"),
        ],
    ),
    Panel(
        "The table",
        [
            ("max(brooq_table_live_rows)", "live rows"),
            ("max(brooq_table_dead_rows)", "dead rows"),
        ],
        description="PostgreSQL's own estimates.",
    ),
    Panel("Size of the table", [("max(brooq_table_size_bytes)", "with its indexes")], "bytes"),
    Panel("Oldest transaction", [("max(brooq_oldest_transaction_age_seconds)", "age")], "s"),
)

TOPIC = (
    Panel("Oldest due job", [(f"max by (topic) (brooq_ready_oldest_age_seconds{T})", "{{topic}}")], "s"),
    Panel(
        "Jobs by state",
        [(f"max by (topic, state) (brooq_jobs{T})", "{{topic}} {{state}}")],
        description="Above some 10,000 an estimate, where brooq_jobs_estimated says so.",
    ),
    Panel(
        "Outcomes a second",
        [(f"sum by (topic, outcome) (rate(brooq_settle_total{T}[$__rate_interval]))", "{{topic}} {{outcome}}")],
        "ops",
    ),
    Panel(
        "Enqueued a second",
        [(f"sum by (topic) (rate(brooq_enqueued_total{T}[$__rate_interval]))", "{{topic}}")],
        "ops",
    ),
    Panel("From due to started", _quantiles("brooq_ready_to_start_seconds", "topic", T), "s"),
    Panel("How long handlers run", _quantiles("brooq_attempt_duration_seconds", "topic", T), "s"),
    Panel("Running", [(f"sum by (topic) (brooq_worker_busy{T})", "{{topic}}")]),
    Panel(
        "Done, of what running handlers tell",
        [
            (
                (
                    f"sum by (topic) (brooq_worker_progress_done{T})"
                    f" / (sum by (topic) (brooq_worker_progress_expected{T}) > 0)"
                ),
                "{{topic}}",
            )
        ],
        unit="percentunit",
    ),
    Panel(
        "Deleted by retention a second",
        [(f"sum by (topic) (rate(brooq_retention_deleted_total{T}[$__rate_interval]))", "{{topic}}")],
        "ops",
    ),
)

WORKERS = (
    Panel("Slots", [(f"sum by (instance, state) (brooq_worker_slots{W})", "{{instance}} {{state}}")]),
    Panel(
        "Parts that work",
        [(f"min by (instance, part) (brooq_worker_part_up{W})", "{{instance}} {{part}}")],
        description="0 while the part meets errors of the database.",
    ),
    Panel("How late heartbeats come", _quantiles("brooq_heartbeat_late_seconds", "instance", W), "s"),
    Panel(
        "Database errors a second",
        [
            (
                f"sum by (instance, part) (rate(brooq_database_errors_total{W}[$__rate_interval]))",
                "{{instance}} {{part}}",
            )
        ],
        "ops",
    ),
    Panel("How long statements take", _quantiles("brooq_batch_duration_seconds", "move", W), "s"),
    Panel(
        "Jobs in a statement",
        [
            (
                " / ".join(f"sum by (move) (rate(brooq_batch_jobs_{each}{W}[$__rate_interval]))" for each in PARTS),
                "{{move}}",
            )
        ],
    ),
    Panel(
        "Claimed a second",
        [(f"sum by (instance) (rate(brooq_claimed_total{W}[$__rate_interval]))", "{{instance}}")],
        "ops",
    ),
    Panel("Looks at the depth", [(f"max by (instance) (brooq_depths_duration_seconds{W})", "{{instance}}")], "s"),
)


def files() -> Iterator[tuple[str, str]]:
    """Each file's name and text."""
    yield "alerts.yml", _rules()
    yield "overview.json", _dashboard("brooq: overview", "brooq-overview", OVERVIEW)
    yield "topics.json", _dashboard("brooq: topics", "brooq-topics", TOPIC, topic="brooq_jobs")
    yield "workers.json", _dashboard("brooq: workers", "brooq-workers", WORKERS, instance="brooq_worker_slots")


def _rules() -> str:
    lines = ["groups:", f"  - name: {GROUP}", "    rules:"]
    for alert in ALERTS:
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {_quoted(alert.expression)}",
            f"        for: {alert.lasts}",
            "        labels:",
            f"          severity: {alert.severity}",
            "        annotations:",
            f"          summary: {_quoted(alert.summary)}",
            f"          description: {_quoted(alert.description)}",
        ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    # A JSON string is one of YAML's too.
    return json.dumps(text, ensure_ascii=False)


def _dashboard(title: str, uid: str, panels: Sequence[Panel], **variables: str) -> str:
    described = {
        "uid": uid,
        "title": title,
        "tags": ["brooq"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "links": [{"type": "dashboards", "tags": ["brooq"], "title": "brooq", "asDropdown": True}],
        "templating": {"list": [_source(), *(_variable(name, metric) for name, metric in variables.items())]},
        "panels": [_panel(number, panel) for number, panel in enumerate(panels)],
    }
    return json.dumps(described, indent=2, ensure_ascii=False) + "\n"


def _source() -> dict[str, Any]:
    return {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus"}


def _variable(name: str, metric: str) -> dict[str, Any]:
    query = f"label_values({metric}, {name})"
    return {
        "type": "query",
        "name": name,
        "label": name.capitalize(),
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    stacking = {"stacking": {"mode": "normal"}, "fillOpacity": 20} if panel.is_stacked else {"fillOpacity": 5}
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": source,
        "gridPos": {"x": number % 2 * WIDTH, "y": number // 2 * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": stacking}, "overrides": []},
        "options": {"legend": {"displayMode": "table", "placement": "right", "calcs": ["lastNotNull"]}},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": source, "expr": query, "legendFormat": legend}
            for index, (query, legend) in enumerate(panel.queries)
        ],
    }


if __name__ == "__main__":
    for name, text in files():
        (HERE / name).write_text(text, encoding="utf-8")
