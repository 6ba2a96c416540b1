"""One row per stage, from the log to the answer."""

from deploy.monitoring.grafana import REQUESTS, board, chart, increase, quantile, quantiles, rate, single

__all__ = ["BOARD"]

BOARD = board(
    "weir-path",
    "Weir: the path at a glance",
    "One row per stage, from the log to the answer.",
    {
        "Now": [
            single(
                "Processes seen",
                'sum (up{job=~"weir-.+"})',
                "Four if each stage runs once.",
                limits={"red": None, "green": 4},
            ),
            single(
                "Alerts firing",
                'count (ALERTS{alertname=~"Weir.+",alertstate="firing"}) or vector(0)',
                limits={"green": None, "red": 1},
            ),
            single(
                "Newest event served, age",
                "max (namespace:weir_served_event:age_seconds{})",
                "How long ago the newest event happened that the served bundle was trained on.",
                unit="s",
            ),
            single(
                "Model over popularity",
                'avg (weir_recall_model{k="$k"}) / avg (weir_recall_popularity{k="$k"})',
                "Recall of the model divided by recall of the most popular items. Below 1.1 it is not worth its cost.",
                limits={"red": None, "green": 1.1},
            ),
            single("Requests", rate(f"grpc_server_handled_total{{{REQUESTS}}}"), unit="reqps"),
            single(
                "Requests without an answer",
                "max (namespace:weir_request_errors:ratio_rate5m{})",
                "Over five minutes; the objective is 0.1 % over 30 days.",
                unit="percentunit",
                limits={"green": None, "orange": 0.001, "red": 0.0144},
            ),
        ],
        "Freshness, end to end": [
            chart(
                "How old is the newest event",
                {
                    "log: since it grew": "time() - max (weir_pipeline_input_timestamp_seconds{} > 0)",
                    "committed": "max (namespace:weir_watermark:age_seconds{})",
                    "served": "max (namespace:weir_served_event:age_seconds{})",
                    "stale above this": "2 * max (namespace:weir_window_open:seconds{}) + 60",
                },
                "In wall-clock time, for replayed logs too. A sawtooth as long as a window is normal.",
                unit="s",
            ),
            chart(
                "From event to servable",
                quantiles("weir_event_to_servable_seconds"),
                "From an event to the first served bundle trained on it; steps come from the histogram's buckets.",
                unit="s",
            ),
            chart(
                "Where the time goes",
                {
                    "commit": quantile(0.5, "weir_pipeline_window_commit_seconds"),
                    "export": quantile(0.5, "weir_bundle_export_seconds"),
                    "load": quantile(0.5, "weir_bundle_load_seconds"),
                },
                "Medians. For training itself see the panel Step.",
                unit="s",
            ),
        ],
        "Pipeline: log to windows": [
            chart(
                "Rows",
                {
                    "{{label}}": rate("weir_pipeline_events_total{}", "label"),
                    "duplicates": rate("weir_pipeline_duplicates_total{}"),
                    "late": rate("weir_pipeline_late_events_total{}"),
                    "ignored": rate("weir_pipeline_ignored_events_total{}"),
                },
                "Events by label, late ones included.",
                unit="cps",
            ),
            chart(
                "Dead letters",
                {
                    "all": rate("weir_pipeline_dead_letters_total{}"),
                    "{{reason}}": rate("weir_pipeline_dead_letters_total{}", "reason") + " > 0",
                },
                "Rows refused, by reason.",
                unit="cps",
            ),
            chart(
                "Windows behind",
                {
                    "not trained on": "max (namespace:weir_windows_unlearnt:count{})",
                    "not in the histories": "max (weir_pipeline_window_sequence{}) - min (weir_history_sequence{})",
                    "not measured": "max (namespace:weir_windows_unmeasured:count{})",
                },
                "Committed windows that the other stages have not processed.",
            ),
        ],
        "Trainer: windows to bundles": [
            chart("Examples trained on", {"examples": rate("weir_trainer_examples_total{}")}, unit="cps"),
            chart(
                "Step",
                {
                    "{{part}}": rate("weir_trainer_step_seconds_sum{}", "part")
                    + " / "
                    + rate("weir_trainer_step_seconds_count{}", "part")
                },
                "Mean seconds of a step, by part.",
                unit="s",
            ),
            chart(
                "Step by rank",
                {"rank {{rank}} on {{node}}": "max by (rank, node) (weir_trainer_rank_step_seconds{})"},
                "Mean seconds of a step on each rank, without what it waits for others: all wait for the slowest.",
                unit="s",
            ),
            chart(
                "Bundles exported",
                {"{{outcome}}": increase('weir_bundle_exports_total{job="weir-trainer"}', "outcome")},
                "Held and failed bundles never reach the server.",
            ),
            chart(
                "Items that moved",
                {
                    "moved": "max (weir_trainer_bundle_moved_ratio{})",
                    "compared": "max (weir_trainer_bundle_compared_ratio{})",
                },
                "New, or off by more than the bound since they were last published; of those that were compared.",
                unit="percentunit",
            ),
            chart("Deltas since a complete bundle", {"deltas": "max (weir_trainer_bundle_chain{})"}),
        ],
        "Server: bundles to answers": [
            chart(
                "Requests",
                {"{{grpc_code}}": rate(f"grpc_server_handled_total{{{REQUESTS}}}", "grpc_code")},
                unit="reqps",
            ),
            chart(
                "Latency",
                quantiles("grpc_server_handling_seconds", REQUESTS),
                unit="s",
            ),
            chart(
                "Bundles in the server",
                {
                    "swapped in": increase("weir_bundle_swaps_total{}"),
                    "refused": increase("weir_bundle_refused_total{}"),
                    "older than before": increase("weir_bundle_rollbacks_total{}"),
                },
            ),
        ],
        "Monitor: recall": [
            chart(
                "Recall",
                {
                    "model": 'avg (weir_recall_model{k="$k"})',
                    "served": 'avg (weir_recall_served{k="$k"})',
                    "popularity": 'avg (weir_recall_popularity{k="$k"})',
                },
                "On next events, measured before they are trained on.",
                unit="percentunit",
            ),
            chart(
                "Recall of the index",
                {"index": 'avg (weir_recall_index{k="$k"})'},
                "Share of exact search's best that approximate search finds.",
                unit="percentunit",
                top=1,
            ),
            chart(
                "Events asked about",
                {
                    "counted": rate('weir_recall_examples_total{kind="served"}'),
                    "not: {{reason}}": rate("weir_recall_skipped_total{}", "reason"),
                },
                "Not counted where the bundle was already trained on them, or changed in between.",
                unit="cps",
            ),
        ],
        "Processes": [
            chart(
                "Memory, share of the limit",
                {
                    "{{job}} {{instance}}": 'sum by (job, instance) (process_resident_memory_bytes{job=~"weir-.+"})'
                    " / on (job) group_left () job:weir_memory_limit:bytes"
                },
                "Of rank 0 only, when several ranks train.",
                unit="percentunit",
            ),
            chart(
                "Processor",
                {"{{job}}": rate('process_cpu_seconds_total{job=~"weir-.+"}', "job")},
                "Cores in use; of rank 0 only, when several ranks train.",
            ),
            chart("Up", {"{{job}} {{instance}}": 'up{job=~"weir-.+"}'}, top=1),
        ],
    },
)
