"""Numbers of the service in Prometheus' text format."""

import resource
import sys
from collections import defaultdict
from collections.abc import Iterable

BUCKETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)

HELP = {
    "sanarl_reward_http_requests_total": "Answers by endpoint and status.",
    "sanarl_reward_http_bytes_total": "Bytes of requests by endpoint.",
    "sanarl_reward_scored_total": "Pictures or clips scored by reward.",
    "sanarl_reward_results_total": "Results by reward and outcome (scored, failed, skipped, pushed).",
    "sanarl_reward_restarts_total": "Processes of scorers that were replaced, by reward.",
    "sanarl_reward_refused_total": "Requests refused because the queue was full or the service was ending.",
    "sanarl_reward_seconds": "Seconds that a scorer took for a request.",
    "sanarl_reward_latency_seconds": "Seconds from a request's arrival to its result.",
}

Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Counters and histograms by name and labels."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[Labels, float]] = defaultdict(lambda: defaultdict(float))
        self._histograms: dict[str, dict[Labels, list[float]]] = defaultdict(dict)

    def add(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Raise a counter."""
        self._counts[name][tuple(sorted(labels.items()))] += amount

    def observe(self, name: str, seconds: float, **labels: str) -> None:
        """Put a duration into a histogram."""
        cells = self._histograms[name].setdefault(tuple(sorted(labels.items())), [0.0] * (len(BUCKETS) + 2))
        for place, bound in enumerate(BUCKETS):
            cells[place] += seconds <= bound
        cells[-2] += 1
        cells[-1] += seconds

    def text(self, gauges: Iterable[tuple[str, str, float, dict[str, str]]]) -> str:
        """Everything, with gauges (name, help, value, labels) as they stand."""
        lines: list[str] = []
        for name, cells in self._counts.items():
            lines += [f"# HELP {name} {HELP[name]}", f"# TYPE {name} counter"]
            lines += [f"{name}{_labels(labels)} {value:g}" for labels, value in cells.items()]
        for name, rows in self._histograms.items():
            lines += [f"# HELP {name} {HELP[name]}", f"# TYPE {name} histogram"]
            for labels, row in rows.items():
                for bound, value in zip((*BUCKETS, "+Inf"), row[:-1], strict=True):
                    lines.append(f"{name}_bucket{_labels((*labels, ('le', str(bound))))} {value:g}")
                lines.append(f"{name}_sum{_labels(labels)} {row[-1]:.6g}")
                lines.append(f"{name}_count{_labels(labels)} {row[-2]:g}")
        seen = set()
        for name, words, value, named in (*gauges, *_process()):
            if name not in seen:
                lines += [f"# HELP {name} {words}", f"# TYPE {name} gauge"]
                seen.add(name)
            lines.append(f"{name}{_labels(tuple(sorted(named.items())))} {value:g}")
        return "\n".join(lines) + "\n"


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    escaped = [(key, value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")) for key, value in labels]
    return "{" + ",".join(f'{key}="{value}"' for key, value in escaped) + "}"


def _process() -> list[tuple[str, str, float, dict[str, str]]]:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return [("sanarl_reward_peak_memory_bytes", "Largest memory of the process that speaks HTTP.", peak, {})]
