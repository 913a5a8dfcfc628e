"""`responsesapi.websocket_timing`: the timing frame that Codex asks for by header, made from a terminal event."""

from typing import Any

from msgspec import UNSET

from engine.events import Terminal, TimingReport
from engine.outgoing import encode_frame


def timing_frame(event: Terminal) -> bytes:
    """The frame for the step that `event` ends. Milliseconds, under the names Codex reads (codex-api, 0.97 on)."""
    report = event.response.timing
    metrics: dict[str, Any] = {} if report is UNSET else _metrics(report, event.response.usage)
    return encode_frame({"type": "responsesapi.websocket_timing", "timing_metrics": metrics})


def _metrics(report: TimingReport, usage: Any) -> dict[str, float]:
    step = report.step
    engine_ms = step.prefill_ms + step.sampling_ms
    overhead_ms = step.queue_ms + step.route_ms + step.validate_ms + step.render_ms + step.tokenize_ms + step.ledger_ms
    num_tokens = usage.output_tokens if usage else 0
    between_ms = step.sampling_ms / num_tokens if num_tokens else 0.0
    return {
        "responses_duration_excl_engine_and_client_tool_time_ms": round(overhead_ms, 3),
        "engine_service_total_ms": round(engine_ms, 3),
        "engine_iapi_ttft_total_ms": round(step.prefill_ms, 3),
        "engine_service_ttft_total_ms": round(step.prefill_ms, 3),
        "engine_iapi_tbt_across_engine_calls_ms": round(between_ms, 3),
        "engine_service_tbt_across_engine_calls_ms": round(between_ms, 3),
    }
